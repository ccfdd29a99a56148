// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/page/run_watch.h"
#include "common/http/http_server.h"

namespace ballast {

// Returns the page: HTML with its style and script, which the browser runs only with this nonce.
std::string PageHtml(const std::string& nonce);

// Answers the browser's requests for runs: / (the page), /runs, /history?run=N and /news?run=N&epoch=E&tick=T. Refuses
// whoever lacks the token, and requests for another host, which a hostile page makes through a name of its own that
// leads here. Thread safety: all methods may be called from any thread.
class PageAnswers {
 public:
  // The runs must outlive this.
  PageAnswers(std::vector<const RunWatch*> runs, std::string token)
      : runs_(std::move(runs)), token_(std::move(token)) {}

  HttpResponse Answer(const HttpRequest& request) const;

 private:
  bool KnowsToken(const HttpRequest& request) const;
  HttpResponse Page() const;

  const std::vector<const RunWatch*> runs_;
  // In the query, or as a bearer's. Not in a cookie, which all ports of this host would be sent.
  const std::string token_;
};

// Serves the page of runs on 127.0.0.1. Thread safety: all methods may be called from any thread.
class PageServer {
 public:
  // The runs must outlive this. 0: a free port. The errors of HttpServer::Start, with the name of the flag --port;
  // INTERNAL without random bytes for a token.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(std::vector<const RunWatch*> runs, int port);

  // The page's address, with the token.
  const std::string& url() const { return url_; }

 private:
  PageServer(std::vector<const RunWatch*> runs, const std::string& token) : answers_(std::move(runs), token) {}

  PageAnswers answers_;
  std::string url_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace ballast
