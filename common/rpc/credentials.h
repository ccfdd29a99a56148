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

// How often certificates are looked at: a file that was replaced counts for connections made so much later.
inline constexpr absl::Duration kCertificateRefresh = absl::Seconds(5);

// What a client shows to servers, and how it knows them. By default nothing and not at all, which does for servers of
// this machine. Thread safety: immutable; copies share what they hold.
class Credentials {
 public:
  Credentials() = default;

  // From files. Errors as CheckTlsFiles and LoadClientToken, and INVALID_ARGUMENT for a certificate without authorities
  // to know servers by.
  static absl::StatusOr<Credentials> Load(const SecurityOptions& options);
  // With a token that is known already, instead of that in options.token_file; empty: none.
  static absl::StatusOr<Credentials> Make(const SecurityOptions& options, const std::string& token,
                                          absl::Duration refresh = kCertificateRefresh);

  // INVALID_ARGUMENT where what is said to host:port, a token above all, could be read on the way.
  absl::Status CheckTarget(absl::string_view address) const;

  // For OpenChannel (common/rpc/channel.h), which opens every channel.
  std::shared_ptr<grpc::ChannelCredentials> ForChannel() const;
  // What each call shows; empty: nothing.
  const std::string& token() const { return token_; }

 private:
  // Null: no TLS.
  std::shared_ptr<grpc::ChannelCredentials> tls_;
  std::string token_;
  bool insecure_ = false;
};

// What a server shows to clients, and which of them it lets in. Errors as CheckTlsFiles, and INVALID_ARGUMENT for
// authorities without a certificate of its own.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const SecurityOptions& options, absl::Duration refresh = kCertificateRefresh);

}  // namespace ballast
