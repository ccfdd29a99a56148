// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/tcp_stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
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

absl::Status ReadToEnd(const Socket& socket, std::vector<char>& block) {
  setsockopt(socket.handle(), SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof(kTimeout));
  for (;;) {
    const ssize_t got = recv(socket.handle(), block.data(), block.size(), 0);
    if (got == 0) return absl::OkStatus();
    if (got < 0 && errno != EINTR) return Errno("cannot read from a TCP stream");
  }
}

absl::Status SendBlock(const Socket& socket, absl::string_view block) {
  while (!block.empty()) {
    const ssize_t sent = send(socket.handle(), block.data(), block.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return Errno("cannot write to a TCP stream");
    if (sent > 0) block.remove_prefix(sent);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ServeTcpSink(const std::string& address_file) {
  const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(listener.handle(), reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener.handle(), 8) != 0 ||
      getsockname(listener.handle(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Errno("cannot listen on the loopback");
  }
  const std::string text = absl::StrCat("127.0.0.1:", ntohs(address.sin_port), "\n");
  if (absl::Status status = WriteFileAtomically(address_file, {text}); !status.ok()) return status;
  std::vector<char> block(kBlockBytes);
  for (;;) {
    const Socket peer(accept4(listener.handle(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.handle() < 0) return Errno("cannot accept a TCP stream");
    // The sender reports its own errors.
    ReadToEnd(peer, block).IgnoreError();
  }
}

absl::StatusOr<TcpRound> SendTcpStream(const std::string& address, absl::string_view bytes, absl::Duration duration) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat("address: got \"", address, "\", want host:port"));
  }
  const Socket stream(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in to = Loopback(static_cast<uint16_t>(port));
  if (connect(stream.handle(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    return Errno(absl::StrCat("cannot connect to ", address));
  }
  setsockopt(stream.handle(), SOL_SOCKET, SO_SNDTIMEO, &kTimeout, sizeof(kTimeout));
  TcpRound round;
  const absl::Time begin = absl::Now();
  do {
    for (size_t at = 0; at < bytes.size(); at += kBlockBytes) {
      if (absl::Status status = SendBlock(stream, bytes.substr(at, kBlockBytes)); !status.ok()) return status;
    }
    round.bytes += bytes.size();
  } while (absl::Now() - begin < duration);
  shutdown(stream.handle(), SHUT_WR);
  // The receiver closes the connection after reading everything.
  std::vector<char> nothing(1);
  if (absl::Status status = ReadToEnd(stream, nothing); !status.ok()) return status;
  round.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  return round;
}

}  // namespace ballast
