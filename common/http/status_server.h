// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/http/http_server.h"
#include "common/http/status_pages.h"
#include "common/security/security_options.h"
#include "common/security/tokens.h"

namespace ballast {

// Returns the address for --http_port, which is a port of `host`, or HOST:PORT; empty if the flag is.
std::string HttpAddress(absl::string_view flag, absl::string_view host);

// Serves StatusPages at an HTTP port: HTTPS if `security` has a certificate. Thread safety: all methods may be called
// from any thread.
class StatusServer {
 public:
  // Null `tokens`: reading needs none. INVALID_ARGUMENT if others can reach the address without TLS or tokens, unless
  // security.insecure is set; the errors of HttpServer::Start, with the name of the flag.
  static absl::StatusOr<std::unique_ptr<StatusServer>> Start(const std::string& address,
                                                             const SecurityOptions& security,
                                                             std::shared_ptr<const TokenTable> tokens,
                                                             StatusPages::Sources sources);

  const std::string& address() const { return server_->address(); }

  // Returns once no page is being made.
  void Stop() { server_->Stop(); }

 private:
  StatusServer(std::shared_ptr<const TokenTable> tokens, StatusPages::Sources sources)
      : tokens_(std::move(tokens)), pages_(std::move(sources), tokens_.get()) {}

  const std::shared_ptr<const TokenTable> tokens_;
  const StatusPages pages_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace ballast
