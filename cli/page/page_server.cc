// SPDX-License-Identifier: Apache-2.0
#include "cli/page/page_server.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/page/page_assets.h"
#include "cli/page/panel_list.h"
#include "common/status/error_reason.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

// Returns an empty text if OpenSSL has no random bytes.
std::string RandomText() {
  std::array<unsigned char, 24> bytes = {};
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) return "";
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

// Returns the value of a name in "a=1&b=2"; empty if there is none.
absl::string_view QueryField(absl::string_view query, absl::string_view name) {
  for (absl::string_view field : absl::StrSplit(query, '&')) {
    if (absl::ConsumePrefix(&field, name) && absl::ConsumePrefix(&field, "=")) return field;
  }
  return "";
}

bool IsOwnHost(absl::string_view host) {
  const size_t end = absl::StartsWith(host, "[") ? host.find(']') + 1 : host.find(':');
  host = host.substr(0, end);
  // Another port may be one that a person forwards to this machine.
  return host == "127.0.0.1" || host == "localhost" || host == "[::1]";
}

HttpResponse Refusal(int status, std::string text) { return {.status = status, .body = absl::StrCat(text, "\n")}; }

HttpResponse JsonAnswer(std::string json) { return {.content_type = "application/json", .body = std::move(json)}; }

}  // namespace

std::string PageHtml(const std::string& nonce) {
  // A script ends where "</script" stands in it.
  const std::string panels = absl::StrReplaceAll(PanelsText(), {{"<", "\\u003c"}});
  return absl::StrReplaceAll(kPageHtml, {{"{{nonce}}", nonce},
                                         {"{{css}}", kPageCss},
                                         {"{{panels}}", panels},
                                         {"{{js}}", absl::StrCat(kChartJs, kRunsJs, kHeadJs, kPanelsJs, kPageJs)}});
}

bool PageAnswers::KnowsToken(const HttpRequest& request) const {
  const auto is_token = [&](absl::string_view given) {
    return given.size() == token_.size() && CRYPTO_memcmp(given.data(), token_.data(), token_.size()) == 0;
  };
  if (is_token(QueryField(request.query, "token"))) return true;
  absl::string_view bearer = request.Header("authorization");
  return absl::ConsumePrefix(&bearer, "Bearer ") && is_token(bearer);
}

HttpResponse PageAnswers::Page() const {
  const std::string nonce = RandomText();
  HttpResponse page{.content_type = "text/html; charset=utf-8", .body = PageHtml(nonce)};
  const std::string source = absl::StrCat("'nonce-", nonce, "'");
  page.headers = {
      {"Content-Security-Policy",
       absl::StrCat(
           "default-src 'none'; script-src ", source, "; style-src ", source,
           "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")},
      {"Referrer-Policy", "no-referrer"},
      {"X-Content-Type-Options", "nosniff"}};
  return page;
}

HttpResponse PageAnswers::Answer(const HttpRequest& request) const {
  if (request.method != "GET") return Refusal(405, absl::StrCat("got ", request.method, ", want GET"));
  if (!IsOwnHost(request.Header("host"))) {
    return Refusal(403, absl::StrCat("got a request for the host \"", absl::Utf8SafeCEscape(request.Header("host")),
                                     "\", want 127.0.0.1 or localhost"));
  }
  if (!KnowsToken(request)) {
    return Refusal(403,
                   "got no token of this page, want the whole address that ballast has printed, with ?token=... at "
                   "its end");
  }
  if (request.path == "/") return Page();
  if (request.path == "/runs") {
    nlohmann::ordered_json runs = nlohmann::ordered_json::array();
    for (const RunWatch* run : runs_) runs.push_back(run->head().name);
    return JsonAnswer(JsonLine({{"runs", runs}}));
  }
  if (request.path != "/history" && request.path != "/news") {
    return Refusal(404, "no such page, want /");
  }
  size_t run = 0;
  if (!absl::SimpleAtoi(QueryField(request.query, "run"), &run) || run >= runs_.size()) {
    return Refusal(400, absl::StrCat("run: got \"", absl::Utf8SafeCEscape(QueryField(request.query, "run")),
                                     "\", want a number below ", runs_.size()));
  }
  if (request.path == "/history") return JsonAnswer(runs_[run]->HistoryJson());
  uint64_t epoch = 0, tick = 0;
  if (!absl::SimpleAtoi(QueryField(request.query, "epoch"), &epoch) ||
      !absl::SimpleAtoi(QueryField(request.query, "tick"), &tick)) {
    return Refusal(400, "epoch, tick: want numbers");
  }
  return JsonAnswer(runs_[run]->NewsJson(epoch, tick));
}

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(std::vector<const RunWatch*> runs, int port) {
  const std::string token = RandomText();
  if (token.empty()) return absl::InternalError("OpenSSL has no random bytes for the page's token");
  std::unique_ptr<PageServer> page(new PageServer(std::move(runs), token));
  HttpServer::Options options;
  options.address = absl::StrCat("127.0.0.1:", port);
  options.max_body_bytes = 0;
  options.max_connections = 64;
  options.handler = [own = page.get()](const HttpRequest& request) { return own->answers_.Answer(request); };
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start(std::move(options));
  if (!server.ok()) return Annotate(server.status(), "--port");
  page->url_ = absl::StrCat("http://", (*server)->address(), "/?token=", token);
  page->server_ = *std::move(server);
  return page;
}

}  // namespace ballast
