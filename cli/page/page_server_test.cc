// SPDX-License-Identifier: Apache-2.0
#include "cli/page/page_server.h"

#include <gmock/gmock.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/page/http_client.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "0123456789abcdef";

class PageServerTest : public testing::Test {
 protected:
  HttpResponse Ask(const std::string& path, const std::string& query,
                   std::vector<std::pair<std::string, std::string>> headers = {}, const std::string& method = "GET") {
    headers.insert(headers.begin(), {"Host", "127.0.0.1:1234"});
    return PageAnswers({&run_}, kToken).Answer({.method = method, .path = path, .query = query, .headers = headers});
  }
  static std::string Header(const HttpResponse& response, const std::string& name) {
    for (const auto& [key, value] : response.headers) {
      if (key == name) return value;
    }
    return "";
  }

  const RunWatch run_{{.address = "127.0.0.1:1"}};
};

TEST_F(PageServerTest, AnswersOnlyWithTheToken) {
  for (const char* path : {"/", "/runs", "/history", "/news", "/other"}) {
    for (const char* query : {"", "token=", "token=0123456789abcdeg", "run=0"}) {
      const HttpResponse response = Ask(path, query);
      EXPECT_EQ(response.status, 403) << path << query;
      EXPECT_THAT(response.body, HasSubstr("want the whole address that ballast has printed, with ?token=..."));
      EXPECT_THAT(response.body, Not(HasSubstr("127.0.0.1")));
    }
  }
  EXPECT_EQ(Ask("/", absl::StrCat("token=", kToken)).status, 200);
  const HttpResponse runs = Ask("/runs", "", {{"Authorization", absl::StrCat("Bearer ", kToken)}});
  EXPECT_EQ(runs.status, 200);
  EXPECT_EQ(runs.body, "{\"runs\":[\"127.0.0.1:1\"]}");
}

TEST_F(PageServerTest, RefusesAnotherHostName) {
  for (const char* host : {"evil.example", "evil.example:1234", "127.0.0.1.evil.example", "", "[::2]:1"}) {
    const HttpResponse response =
        PageAnswers({&run_}, kToken)
            .Answer(
                {.method = "GET", .path = "/", .query = absl::StrCat("token=", kToken), .headers = {{"Host", host}}});
    EXPECT_EQ(response.status, 403) << host;
    EXPECT_THAT(response.body, HasSubstr("want 127.0.0.1 or localhost"));
  }
  for (const char* host : {"localhost:9000", "127.0.0.1", "[::1]:80"}) {
    EXPECT_EQ(
        PageAnswers({&run_}, kToken)
            .Answer(
                {.method = "GET", .path = "/", .query = absl::StrCat("token=", kToken), .headers = {{"Host", host}}})
            .status,
        200)
        << host;
  }
}

TEST_F(PageServerTest, ThePageHasAllOfItselfAndLoadsNothing) {
  const HttpResponse page = Ask("/", absl::StrCat("token=", kToken));
  EXPECT_THAT(Header(page, "Content-Security-Policy"), HasSubstr("default-src 'none'; script-src 'nonce-"));
  EXPECT_THAT(Header(page, "Content-Security-Policy"), Not(HasSubstr("unsafe")));
  EXPECT_THAT(page.body, Not(HasSubstr("{{")));
  for (const char* outside : {"http://", "https://", "src=", "@import", "url("}) {
    EXPECT_THAT(page.body, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(page.body, HasSubstr("\"stragglers\""));
  // Each page has a nonce of its own.
  EXPECT_NE(page.body, Ask("/", absl::StrCat("token=", kToken)).body);
}

TEST_F(PageServerTest, ExplainsBadRequests) {
  const std::string token = absl::StrCat("token=", kToken);
  EXPECT_EQ(Ask("/", token, {}, "POST").status, 405);
  EXPECT_EQ(Ask("/nothing", token).status, 404);
  for (const char* run : {"", "&run=", "&run=1", "&run=-1", "&run=x"}) {
    EXPECT_EQ(Ask("/history", token + run).status, 400) << run;
  }
  EXPECT_EQ(Ask("/news", token + "&run=0&epoch=x&tick=1").status, 400);
  EXPECT_EQ(Ask("/news", token + "&run=0&epoch=1&tick=1").body, "{\"reset\":true}");
  EXPECT_THAT(Ask("/history", token + "&run=0").body, HasSubstr("\"lines\":[]"));
}

TEST_F(PageServerTest, ServesOnThisMachineAtAnAddressWithAToken) {
  const auto server = PageServer::Start({&run_}, 0);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string& url = (*server)->url();
  ASSERT_TRUE(absl::StartsWith(url, "http://127.0.0.1:")) << url;
  const size_t slash = url.find("/?token=");
  ASSERT_NE(slash, url.npos);
  EXPECT_EQ(url.size() - slash - 8, 48);
  const auto client = HttpClient::Open({.address = url.substr(7, slash - 7)});
  ASSERT_TRUE(client.ok());
  EXPECT_EQ((*client)->Get(url.substr(slash), absl::Seconds(10))->status, 200);
  EXPECT_EQ((*client)->Get("/", absl::Seconds(10))->status, 403);
  // The port is taken.
  const int port = std::stoi(url.substr(17, slash - 17));
  const absl::Status taken = PageServer::Start({&run_}, port).status();
  EXPECT_THAT(std::string(taken.message()), HasSubstr(absl::StrCat("--port: HTTP address: got 127.0.0.1:", port)));
}

}  // namespace
}  // namespace ballast
