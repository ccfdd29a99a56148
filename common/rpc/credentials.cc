// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/credentials.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/security/tokens.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace ballast {
namespace {

namespace tls = grpc::experimental;

std::shared_ptr<tls::CertificateProviderInterface> Provide(const TlsFiles& files, absl::Duration refresh) {
  return std::make_shared<tls::FileWatcherCertificateProvider>(files.key, files.certificate, files.authorities,
                                                               static_cast<unsigned>(absl::ToInt64Seconds(refresh)));
}

void Watch(const TlsFiles& files, tls::TlsCredentialsOptions& options) {
  if (!files.authorities.empty()) options.watch_root_certs();
  if (!files.certificate.empty()) options.watch_identity_key_cert_pairs();
}

}  // namespace

absl::StatusOr<Credentials> Credentials::Load(const SecurityOptions& options) {
  if (options.token_file.empty()) return Make(options, "");
  const absl::StatusOr<std::string> token = LoadClientToken(options.token_file);
  if (!token.ok()) return token.status();
  return Make(options, *token);
}

absl::StatusOr<Credentials> Credentials::Make(const SecurityOptions& options, const std::string& token,
                                              absl::Duration refresh) {
  if (absl::Status status = CheckTlsFiles(options.tls, absl::Now()); !status.ok()) return status;
  Credentials credentials;
  credentials.token_ = token;
  credentials.insecure_ = options.insecure;
  if (!options.has_tls()) return credentials;
  if (options.tls.authorities.empty()) {
    return absl::InvalidArgumentError(
        "--tls_cert: want --tls_ca too, the certificate authorities that sign the servers' certificates");
  }
  tls::TlsChannelCredentialsOptions channel;
  channel.set_certificate_provider(Provide(options.tls, refresh));
  Watch(options.tls, channel);
  credentials.tls_ = tls::TlsCredentials(channel);
  return credentials;
}

absl::Status Credentials::CheckTarget(absl::string_view address) const {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 1 || port > 65535) {
    // gRPC would take port 0, or the port modulo 65536.
    return absl::InvalidArgumentError(
        absl::StrCat("cannot connect to \"", address, "\": want HOST:PORT with a port of 1 to 65535"));
  }
  if (tls_ != nullptr || insecure_ || IsLoopback(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("refusing to connect to ", address,
                   " without TLS: the address may be another machine, and anyone on the network path could read and "
                   "change the traffic. Set --tls_ca, and --token_file if the server requires a token; --insecure "
                   "connects without TLS"));
}

std::shared_ptr<grpc::ChannelCredentials> Credentials::ForChannel() const {
  return tls_ != nullptr ? tls_ : grpc::InsecureChannelCredentials();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const SecurityOptions& options,
                                                                               absl::Duration refresh) {
  if (absl::Status status = CheckTlsFiles(options.tls, absl::Now()); !status.ok()) return status;
  if (!options.has_tls()) return grpc::InsecureServerCredentials();
  if (options.tls.certificate.empty()) {
    return absl::InvalidArgumentError(
        "--tls_ca: want --tls_cert and --tls_key too, the certificate of this server and its key");
  }
  tls::TlsServerCredentialsOptions server(Provide(options.tls, refresh));
  Watch(options.tls, server);
  if (!options.tls.authorities.empty()) {
    server.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(server);
}

}  // namespace ballast
