// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/security/tls_files.h"

namespace ballast {

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
                                                            absl::Time deadline);
  ~Http2Peer();
  Http2Peer(const Http2Peer&) = delete;

  // If true (the default), the peer reads and drops the server's bytes; if not, the server stalls on full buffers.
  void SetHears(bool hears) { hears_ = hears; }

  // UNAVAILABLE if the server has ended the connection, DEADLINE_EXCEEDED if it accepts nothing until the deadline.
  absl::Status Send(absl::string_view bytes);

  // Waits until the server has sent something. UNAVAILABLE if it has ended the connection instead.
  absl::Status AwaitWord();

  // Waits until the server ends the connection; DEADLINE_EXCEEDED if it does not.
  absl::Status AwaitEnd();

  // Bytes read from the server so far.
  uint64_t heard_bytes() const { return heard_bytes_; }

 private:
  Http2Peer(int socket, absl::Time deadline) : socket_(socket), deadline_(deadline) {}
  absl::Status ShakeHands(const TlsFiles& tls);
  // Waits until the socket is ready for `events`.
  absl::Status Await(short events);
  // Drops all received bytes. UNAVAILABLE at the end of the connection.
  absl::Status Hear();

  const int socket_;
  const absl::Time deadline_;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_{nullptr, SSL_CTX_free};
  std::unique_ptr<SSL, void (*)(SSL*)> tls_{nullptr, SSL_free};
  bool hears_ = true;
  uint64_t heard_bytes_ = 0;
};

}  // namespace ballast
