// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/security/security_options.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace ballast {

// Interval at which certificate files are reloaded: a replaced file applies to connections made after that time.
inline constexpr absl::Duration kCertificateRefresh = absl::Seconds(5);

// A client's token and certificates, and the authorities by which it verifies servers. By default there are none,
// which is enough for servers on the same machine. Thread safety: immutable; copies share their contents.
class Credentials {
 public:
  Credentials() = default;

  // Loads the files in `options`. Returns the errors of CheckTlsFiles and LoadClientToken, and INVALID_ARGUMENT for a
  // certificate without authorities to verify servers.
  static absl::StatusOr<Credentials> Load(const SecurityOptions& options);
  // Uses `token` instead of options.token_file; empty: no token.
  static absl::StatusOr<Credentials> Make(const SecurityOptions& options, const std::string& token,
                                          absl::Duration refresh = kCertificateRefresh);

  // INVALID_ARGUMENT if traffic to host:port, above all a token, could be read on the way.
  absl::Status CheckTarget(absl::string_view address) const;

  // Used by OpenChannel (common/rpc/channel.h), which opens every channel.
  std::shared_ptr<grpc::ChannelCredentials> ForChannel() const;
  // Token sent with each call; empty: none.
  const std::string& token() const { return token_; }

 private:
  // Null without TLS.
  std::shared_ptr<grpc::ChannelCredentials> tls_;
  std::string token_;
  bool insecure_ = false;
};

// Creates a server's certificates and client verification. Returns the errors of CheckTlsFiles, and INVALID_ARGUMENT
// for authorities without a certificate of the server.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const SecurityOptions& options, absl::Duration refresh = kCertificateRefresh);

}  // namespace ballast
