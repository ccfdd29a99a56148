// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/hostile/http2_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

constexpr size_t kMaxWriteBytes = 64 << 10;

absl::Status Ended() { return absl::UnavailableError("the server has ended the connection"); }

// An HPACK string of less than 127 bytes, uncompressed.
std::string Text(absl::string_view text) { return absl::StrCat(std::string(1, static_cast<char>(text.size())), text); }

// A header that neither side adds to its table.
std::string Literal(absl::string_view name, absl::string_view value) {
  return absl::StrCat(absl::string_view("\0", 1), Text(name), Text(value));
}

}  // namespace

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

absl::StatusOr<std::unique_ptr<Http2Peer>> Http2Peer::Connect(const std::string& address, const TlsFiles* tls,
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

Http2Peer::~Http2Peer() { close(socket_); }

absl::Status Http2Peer::ShakeHands(const TlsFiles& tls) {
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

absl::Status Http2Peer::Await(short events) {
  const int64_t left = absl::ToInt64Milliseconds(absl::Ceil(deadline_ - absl::Now(), absl::Milliseconds(1)));
  pollfd file = {socket_, events, 0};
  if (left > 0 && poll(&file, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30))) == 1) return absl::OkStatus();
  return absl::DeadlineExceededError("the attack's time is over");
}

absl::Status Http2Peer::Hear() {
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

absl::Status Http2Peer::Send(absl::string_view bytes) {
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

absl::Status Http2Peer::AwaitWord() {
  while (heard_bytes_ == 0) {
    if (absl::Status status = Hear(); !status.ok()) return status;
    if (heard_bytes_ > 0) break;
    if (absl::Status status = Await(POLLIN); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Http2Peer::AwaitEnd() {
  while (true) {
    if (absl::Status status = Hear(); !status.ok()) return absl::OkStatus();
    if (absl::Status status = Await(POLLIN); !status.ok()) return status;
  }
}

}  // namespace ballast
