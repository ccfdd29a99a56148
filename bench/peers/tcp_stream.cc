// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/tcp_stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/rpc/pacing.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
// A part of a gradient is applied while it is in the caches, and while the next one arrives.
constexpr size_t kAppliedBytes = size_t{64} << 10;
// Timeout of one read or write.
constexpr timeval kTimeout = {.tv_sec = 30, .tv_usec = 0};

class Socket {
 public:
  explicit Socket(int handle) : handle_(handle) {}
  Socket(Socket&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (handle_ >= 0) close(handle_);
  }
  int handle() const { return handle_; }

 private:
  int handle_;
};

absl::Status Errno(absl::string_view what) { return absl::ErrnoToStatus(errno, what); }

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// An array that begins with a page: on some processors the kernel copies twice as fast to it as to one of malloc.
template <typename T>
class PageArray {
 public:
  explicit PageArray(size_t size) : first_(new (Free::kPage) T[size]()), size_(size) {}
  absl::Span<T> values() const { return {first_.get(), size_}; }

 private:
  struct Free {
    static constexpr std::align_val_t kPage{4096};
    void operator()(T* first) const { operator delete[](first, kPage); }
  };

  const std::unique_ptr<T[], Free> first_;
  const size_t size_;
};

absl::Status ReadToEnd(const Socket& socket, absl::Span<char> block) {
  setsockopt(socket.handle(), SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof(kTimeout));
  for (;;) {
    const ssize_t got = recv(socket.handle(), block.data(), block.size(), 0);
    if (got == 0) return absl::OkStatus();
    if (got < 0 && errno != EINTR) return Errno("cannot read from a TCP stream");
  }
}

// Returns whether all bytes came before the end.
absl::StatusOr<bool> ReadBlock(const Socket& socket, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(socket.handle(), to, bytes, 0);
    if (got == 0) return false;
    if (got < 0 && errno != EINTR) return Errno("cannot read from a TCP stream");
    if (got < 0) continue;
    to += got;
    bytes -= got;
  }
  return true;
}

constexpr char kAnswer[] = "A";

enum class Use { kNothing, kApply };

// Reads the size of a tensor in bytes, then tensors of that size to the end, and uses each block of them. Sends an
// answer of one byte when it is ready, and one for each tensor. `read`: see ReadBlock.
absl::Status ReadTensors(absl::FunctionRef<absl::StatusOr<bool>(char* to, size_t bytes)> read,
                         absl::FunctionRef<absl::Status(absl::string_view)> send, Use use, absl::Span<float> block) {
  constexpr float kRate = 1e-6f;
  uint64_t bytes = 0;
  absl::StatusOr<bool> more = read(reinterpret_cast<char*>(&bytes), sizeof(bytes));
  std::vector<float> weights(more.ok() && *more ? bytes / sizeof(float) : 0);
  if (weights.empty()) return more.status();
  while (more.ok() && *more) {
    if (absl::Status status = send(kAnswer); !status.ok()) return status;
    for (size_t at = 0; at < weights.size() && more.ok() && *more; at += block.size()) {
      const size_t count = std::min(block.size(), weights.size() - at);
      more = read(reinterpret_cast<char*>(block.data()), count * sizeof(float));
      for (size_t i = 0; use == Use::kApply && i < count; ++i) weights[at + i] -= kRate * block[i];
    }
  }
  return more.status();
}

// The head of a stream of tensors of that size, for ReadTensors.
std::string SizeHead(uint64_t bytes) { return {reinterpret_cast<const char*>(&bytes), sizeof(bytes)}; }

absl::Status SendBlock(const Socket& socket, absl::string_view block) {
  while (!block.empty()) {
    const ssize_t sent = send(socket.handle(), block.data(), block.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return Errno("cannot write to a TCP stream");
    if (sent > 0) block.remove_prefix(sent);
  }
  return absl::OkStatus();
}

// Both sides have it, so it hides nothing, which is not what is measured.
constexpr char kKey[] = "the key of a bare stream, public";
constexpr char kIdentity[] = "bench";

unsigned ClientKey(SSL*, const char*, char* identity, unsigned, unsigned char* key, unsigned) {
  std::memcpy(identity, kIdentity, sizeof(kIdentity));
  std::memcpy(key, kKey, sizeof(kKey) - 1);
  return sizeof(kKey) - 1;
}

unsigned ServerKey(SSL*, const char*, unsigned char* key, unsigned) {
  std::memcpy(key, kKey, sizeof(kKey) - 1);
  return sizeof(kKey) - 1;
}

// One end of a stream that OpenSSL encrypts by itself, with its defaults, on a socket that blocks.
class TlsEnd {
 public:
  TlsEnd(const Socket& socket, bool server)
      : context_(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method())) {
    // An end that is lost must not raise SIGPIPE in a benchmark.
    signal(SIGPIPE, SIG_IGN);
    SSL_CTX_set_min_proto_version(context_.get(), TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context_.get(), "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_num_tickets(context_.get(), 0);
    SSL_CTX_set_psk_client_callback(context_.get(), ClientKey);
    SSL_CTX_set_psk_server_callback(context_.get(), ServerKey);
    tls_.reset(SSL_new(context_.get()));
    SSL_set_fd(tls_.get(), socket.handle());
    for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
      setsockopt(socket.handle(), SOL_SOCKET, option, &kTimeout, sizeof(kTimeout));
    }
    ready_ = (server ? SSL_accept(tls_.get()) : SSL_connect(tls_.get())) == 1;
  }

  bool ready() const { return ready_; }

  absl::Status Send(absl::string_view block) {
    size_t sent = 0;
    if (SSL_write_ex(tls_.get(), block.data(), block.size(), &sent) == 1) return absl::OkStatus();
    return absl::UnavailableError("cannot write to a TLS stream");
  }

  // Decrypts everything until the other side ends the stream.
  void ReadToEnd(absl::Span<char> block) {
    size_t got = 0;
    while (SSL_read_ex(tls_.get(), block.data(), block.size(), &got) == 1) {
    }
  }

  // Returns whether all bytes came before the end.
  absl::StatusOr<bool> ReadBlock(char* to, size_t bytes) {
    size_t got = 0;
    for (; bytes > 0; to += got, bytes -= got) {
      if (SSL_read_ex(tls_.get(), to, bytes, &got) != 1) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
    void operator()(SSL* tls) const { SSL_free(tls); }
  };

  const std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> tls_;
  bool ready_ = false;
};

// Returns a socket of the caller's.
absl::StatusOr<int> ConnectTo(const std::string& address) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat("address: got \"", address, "\", want host:port"));
  }
  const int stream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in to = Loopback(static_cast<uint16_t>(port));
  // As for Ballast's own data streams, whose limit this is.
  StopPacingOnLoopback(stream, reinterpret_cast<const sockaddr*>(&to));
  const int at_once = 1;
  setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
  if (connect(stream, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return stream;
  const absl::Status failed = Errno(absl::StrCat("cannot connect to ", address));
  close(stream);
  return failed;
}

// NotFound: the receiver has ended the stream.
absl::Status AwaitAnswer(absl::FunctionRef<absl::StatusOr<bool>(char* to, size_t bytes)> read) {
  char answer;
  const absl::StatusOr<bool> got = read(&answer, 1);
  return got.ok() && !*got ? absl::NotFoundError("the receiver of a stream of tensors has ended it") : got.status();
}

// Sends `head`, then blocks of the bytes, repeatedly for `duration`, and calls `finish` at the end. With a head, waits
// for the answers to it and to each repetition; see ReadTensors. Counts the time after the head. `read`: see ReadBlock.
absl::StatusOr<TcpRound> SendFor(absl::string_view head, absl::string_view bytes, absl::Duration duration,
                                 absl::FunctionRef<absl::Status(absl::string_view)> send_block,
                                 absl::FunctionRef<absl::StatusOr<bool>(char* to, size_t bytes)> read,
                                 absl::FunctionRef<absl::Status()> finish) {
  const auto await_answer = [&] { return head.empty() ? absl::OkStatus() : AwaitAnswer(read); };
  absl::Status begun = head.empty() ? absl::OkStatus() : send_block(head);
  if (begun.ok()) begun = await_answer();
  if (!begun.ok()) return begun;
  TcpRound round;
  const absl::Time begin = absl::Now();
  do {
    for (size_t at = 0; at < bytes.size(); at += kBlockBytes) {
      if (absl::Status status = send_block(bytes.substr(at, kBlockBytes)); !status.ok()) return status;
    }
    if (absl::Status status = await_answer(); !status.ok()) return status;
    round.bytes += bytes.size();
  } while (absl::Now() - begin < duration);
  if (absl::Status status = finish(); !status.ok()) return status;
  round.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  return round;
}

// Calls `read` with the socket, which it owns, of one stream after the other.
absl::Status ServeSink(const std::string& address_file, absl::FunctionRef<void(int socket)> read) {
  const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(listener.handle(), reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener.handle(), 8) != 0 ||
      getsockname(listener.handle(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Errno("cannot listen on the loopback");
  }
  const std::string text = absl::StrCat("127.0.0.1:", ntohs(address.sin_port), "\n");
  if (absl::Status status = WriteFileAtomically(address_file, {text}); !status.ok()) return status;
  for (;;) {
    const int peer = accept4(listener.handle(), nullptr, nullptr, SOCK_CLOEXEC);
    if (peer < 0) return Errno("cannot accept a TCP stream");
    read(peer);
  }
}

absl::StatusOr<TcpRound> SendStream(const std::string& address, absl::string_view head, absl::string_view bytes,
                                    absl::Duration duration) {
  const absl::StatusOr<int> socket = ConnectTo(address);
  if (!socket.ok()) return socket.status();
  const Socket stream(*socket);
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    setsockopt(stream.handle(), SOL_SOCKET, option, &kTimeout, sizeof(kTimeout));
  }
  return SendFor(
      head, bytes, duration, [&](absl::string_view block) { return SendBlock(stream, block); },
      [&](char* to, size_t count) { return ReadBlock(stream, to, count); },
      [&] {
        shutdown(stream.handle(), SHUT_WR);
        // The receiver closes the connection after reading everything.
        char nothing = 0;
        return ReadToEnd(stream, absl::MakeSpan(&nothing, 1));
      });
}

// The same with TLS.
absl::StatusOr<TcpRound> SendEncrypted(const std::string& address, absl::string_view head, absl::string_view bytes,
                                       absl::Duration duration) {
  const absl::StatusOr<int> socket = ConnectTo(address);
  if (!socket.ok()) return socket.status();
  const Socket stream(*socket);
  TlsEnd end(stream, /*server=*/false);
  if (!end.ready()) return absl::UnavailableError("TLS handshake with the sink of a stream failed");
  return SendFor(
      head, bytes, duration, [&](absl::string_view block) { return end.Send(block); },
      [&](char* to, size_t count) { return end.ReadBlock(to, count); },
      [&] {
        shutdown(stream.handle(), SHUT_WR);
        char nothing = 0;
        end.ReadToEnd(absl::MakeSpan(&nothing, 1));
        return absl::OkStatus();
      });
}

absl::Status ServeTensors(const std::string& address_file, Use use) {
  const PageArray<float> block(kAppliedBytes / sizeof(float));
  return ServeSink(address_file, [&](int socket) {
    const Socket peer(socket);
    setsockopt(peer.handle(), SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof(kTimeout));
    ReadTensors([&](char* to, size_t bytes) { return ReadBlock(peer, to, bytes); },
                [&](absl::string_view answer) { return SendBlock(peer, answer); }, use, block.values())
        .IgnoreError();
  });
}

absl::Status ServeTlsTensors(const std::string& address_file, Use use) {
  const PageArray<float> block(kAppliedBytes / sizeof(float));
  return ServeSink(address_file, [&](int socket) {
    const Socket peer(socket);
    TlsEnd end(peer, /*server=*/true);
    if (!end.ready()) return;
    ReadTensors([&](char* to, size_t bytes) { return end.ReadBlock(to, bytes); },
                [&](absl::string_view answer) { return end.Send(answer); }, use, block.values())
        .IgnoreError();
  });
}

}  // namespace

absl::Status ServeTcpSink(const std::string& address_file) {
  const PageArray<char> block(kBlockBytes);
  // The sender reports its own errors.
  return ServeSink(address_file, [&](int socket) { ReadToEnd(Socket(socket), block.values()).IgnoreError(); });
}

absl::Status ServeSgdSink(const std::string& address_file) { return ServeTensors(address_file, Use::kApply); }

absl::Status ServeAskingSink(const std::string& address_file) { return ServeTensors(address_file, Use::kNothing); }

absl::Status ServeTlsSink(const std::string& address_file) {
  const PageArray<char> block(kBlockBytes);
  return ServeSink(address_file, [&](int socket) {
    const Socket peer(socket);
    TlsEnd end(peer, /*server=*/true);
    if (end.ready()) end.ReadToEnd(block.values());
  });
}

absl::Status ServeTlsSgdSink(const std::string& address_file) { return ServeTlsTensors(address_file, Use::kApply); }

absl::Status ServeTlsAskingSink(const std::string& address_file) {
  return ServeTlsTensors(address_file, Use::kNothing);
}

absl::StatusOr<TcpRound> SendTcpStream(const std::string& address, absl::string_view bytes, absl::Duration duration) {
  return SendStream(address, "", bytes, duration);
}

absl::StatusOr<TcpRound> SendTensors(const std::string& address, absl::string_view bytes, absl::Duration duration) {
  return SendStream(address, SizeHead(bytes.size()), bytes, duration);
}

absl::StatusOr<TcpRound> SendTlsStream(const std::string& address, absl::string_view bytes, absl::Duration duration) {
  return SendEncrypted(address, "", bytes, duration);
}

absl::StatusOr<TcpRound> SendTlsTensors(const std::string& address, absl::string_view bytes, absl::Duration duration) {
  return SendEncrypted(address, SizeHead(bytes.size()), bytes, duration);
}

}  // namespace ballast
