// SPDX-License-Identifier: Apache-2.0
#include "common/http/status_server.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {

std::string HttpAddress(absl::string_view flag, absl::string_view host) {
  return flag.empty() || absl::StrContains(flag, ":") ? std::string(flag) : absl::StrCat(host, ":", flag);
}

absl::StatusOr<std::unique_ptr<StatusServer>> StatusServer::Start(const std::string& address,
                                                                  const SecurityOptions& security,
                                                                  std::shared_ptr<const TokenTable> tokens,
                                                                  StatusPages::Sources sources) {
  const auto failed = [](const absl::Status& status) { return Annotate(status, "--http_port"); };
  if (absl::Status status = CheckServing(address, security); !status.ok()) return failed(status);
  std::unique_ptr<StatusServer> pages(new StatusServer(std::move(tokens), std::move(sources)));
  HttpServer::Options options;
  options.address = address;
  // Its pages are short; a scraper that does not read keeps no thread.
  options.threads = 1;
  options.max_body_bytes = 0;
  options.tls = {.certificate = security.tls.certificate, .key = security.tls.key};
  options.handler = [own = pages.get()](const HttpRequest& request) { return own->pages_.Answer(request); };
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start(std::move(options));
  if (!server.ok()) return failed(server.status());
  pages->server_ = *std::move(server);
  return pages;
}

}  // namespace ballast
