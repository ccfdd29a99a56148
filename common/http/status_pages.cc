// SPDX-License-Identifier: Apache-2.0
#include "common/http/status_pages.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// Exposition format of Prometheus.
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kFlightType[] = "application/jsonl; charset=utf-8";
constexpr absl::string_view kBearer = "Bearer ";

}  // namespace

absl::Status StatusPages::CheckToken(const HttpRequest& request) const {
  if (tokens_ == nullptr) return absl::OkStatus();
  const absl::string_view given = request.Header("authorization");
  const bool bears = absl::EqualsIgnoreCase(given.substr(0, kBearer.size()), kBearer);
  const TokenGrant* grant = bears ? tokens_->Find(absl::StripAsciiWhitespace(given.substr(kBearer.size()))) : nullptr;
  if (grant == nullptr) {
    return absl::UnauthenticatedError("got no known token, want \"Authorization: Bearer\" with a token of the job");
  }
  const std::string job = sources_.job();
  if (grant->job == "*" || job.empty() || grant->job == job) return absl::OkStatus();
  return absl::PermissionDeniedError("got a token of another job, want one of this process's job");
}

HttpResponse StatusPages::Answer(const HttpRequest& request) const {
  if (request.method != "GET") {
    return {.status = 405, .body = absl::StrCat("got ", request.method, ", want GET\n"), .headers = {{"Allow", "GET"}}};
  }
  if (request.path == "/healthz") return {.body = "ok\n"};
  if (request.path == "/readyz") {
    const absl::Status ready = sources_.ready();
    if (ready.ok()) return {.body = "ok\n"};
    return {.status = 503, .body = absl::StrCat(ready.message(), "\n")};
  }
  const bool flight = request.path == "/flight";
  if (!flight && request.path != "/metrics") {
    return {.status = 404, .body = "no such page, want /healthz, /readyz, /metrics or /flight\n"};
  }
  const absl::Status allowed = CheckToken(request);
  if (absl::IsUnauthenticated(allowed)) {
    return {.status = 401, .body = absl::StrCat(allowed.message(), "\n"), .headers = {{"WWW-Authenticate", "Bearer"}}};
  }
  if (!allowed.ok()) return {.status = 403, .body = absl::StrCat(allowed.message(), "\n")};
  if (flight) return {.content_type = kFlightType, .body = sources_.flight()};
  return {.content_type = kMetricsType, .body = sources_.metrics()};
}

}  // namespace ballast
