// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/http/http_server.h"
#include "common/security/tokens.h"

namespace ballast {

// The pages of a server or worker for probes and scrapers:
//   /healthz   200 while the process answers
//   /readyz    200 while it is ready; otherwise 503 and the reason
//   /metrics   metrics for Prometheus
//   /flight    the newest events of the process, see FlightDumpText
// The first two are open and say nothing about the job. With tokens, the others need "Authorization: Bearer TOKEN" with
// a token of the job. Thread safety: all methods may be called from any thread.
class StatusPages {
 public:
  // All are called from any thread.
  struct Sources {
    // Text in Prometheus' format.
    std::function<std::string()> metrics;
    // A flight dump.
    std::function<std::string()> flight;
    std::function<absl::Status()> ready;
    // Name of the job; empty: none yet.
    std::function<std::string()> job;
  };

  // Null `tokens`: none are needed. The tokens must outlive the pages.
  StatusPages(Sources sources, const TokenTable* tokens) : sources_(std::move(sources)), tokens_(tokens) {}

  HttpResponse Answer(const HttpRequest& request) const;

 private:
  // Returns OK (200), UNAUTHENTICATED or PERMISSION_DENIED.
  absl::Status CheckToken(const HttpRequest& request) const;

  const Sources sources_;
  const TokenTable* const tokens_;
};

}  // namespace ballast
