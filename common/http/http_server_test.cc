// SPDX-License-Identifier: Apache-2.0
#include "common/http/http_server.h"

#include <gmock/gmock.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/http/testing/raw_http_client.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    options_.address = "127.0.0.1:0";
    options_.handler = [this](const HttpRequest& request) { return Handle(request); };
  }

  void Start() {
    auto server = HttpServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  HttpResponse Handle(const HttpRequest& request) {
    ++handled_;
    if (request.path == "/wait") release_.WaitForNotification();
    if (request.path == "/missing") return {.status = 404, .body = "no such page\n"};
    return {.body = absl::StrCat(request.method, " ", request.path, " ", request.query, " ", request.Header("x-WHO"),
                                 " ", request.body, "\n")};
  }

  std::string Ask(absl::string_view bytes) {
    const RawHttpClient client(server_->address());
    client.Send(bytes);
    client.SendNothingMore();
    return client.ReceiveAll();
  }
  void ExpectWell() { EXPECT_THAT(Ask("GET /fine HTTP/1.1\r\n\r\n"), HasSubstr("GET /fine")); }

  HttpServer::Options options_;
  std::atomic<int> handled_{0};
  absl::Notification release_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersWithWhatTheHandlerReturns) {
  Start();
  const std::string answer =
      Ask("POST /a%20b?x=1&y=%20 HTTP/1.1\r\nHost: h\r\nX-Who: me\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\nPOST /a b x=1&y=%20 me hello\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 29\r\n"));
  EXPECT_THAT(answer, HasSubstr("Cache-Control: no-store\r\n"));
  EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(Ask("GET /missing HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 Not Found\r\n"));
}

TEST_F(HttpServerTest, AnswersSeveralRequestsOfAConnectionInOrder) {
  Start();
  const std::string answer =
      Ask("GET /1 HTTP/1.1\r\n\r\nPOST /2 HTTP/1.1\r\nContent-Length: 1\r\n\r\nxGET /3 HTTP/1.1\r\nConnection: "
          "close\r\n\r\nGET /4 HTTP/1.1\r\n\r\n");
  const size_t first = answer.find("GET /1"), second = answer.find("POST /2"), third = answer.find("GET /3");
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_NE(third, answer.npos);
  EXPECT_THAT(answer, Not(HasSubstr("GET /4"))) << "after the request that closes the connection";
}

TEST_F(HttpServerTest, KeepsAConnectionOpenBetweenRequests) {
  Start();
  const RawHttpClient client(server_->address());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.Send(absl::StrCat("GET /", i, " HTTP/1.1\r\n\r\n")));
    EXPECT_THAT(client.ReceiveOne(), HasSubstr(absl::StrCat("GET /", i)));
  }
}

TEST_F(HttpServerTest, AnswersHeadWithoutABody) {
  Start();
  const std::string answer = Ask("HEAD /a HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 10\r\n"));
  EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\n")) << answer;
}

TEST_F(HttpServerTest, ReadsChunkedBodiesAndInvitesAWaitingClient) {
  Start();
  EXPECT_THAT(Ask("POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"),
              HasSubstr("POST /c   abcde\n"));
  const RawHttpClient client(server_->address());
  client.Send("POST /e HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.Receive([](const std::string& text) { return absl::EndsWith(text, "\r\n\r\n"); }),
            "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("ok");
  EXPECT_THAT(client.ReceiveOne(), HasSubstr("POST /e   ok\n"));
}

TEST_F(HttpServerTest, RefusesRequestsBeyondItsLimits) {
  options_.max_body_bytes = 10;
  options_.max_header_bytes = 500;
  Start();
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\nhello world"), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n"), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Ask(absl::StrCat("GET / HTTP/1.1\r\nX: ", std::string(600, 'x'), "\r\n\r\n")),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Ask(absl::StrCat("GET /", std::string(1 << 20, 'x'), " HTTP/1.1\r\n\r\n")), StartsWith("HTTP/1.1 431"));
  EXPECT_EQ(handled_, 0);
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n0123456789"), HasSubstr("0123456789"));
}

TEST_F(HttpServerTest, RefusesMalformedRequests) {
  Start();
  for (const char* request : {"hello\r\n\r\n",
                              "GET / HTTP/9.9\r\n\r\n",
                              "GET  HTTP/1.1\r\n\r\n",
                              "GET / HTTP/1.1\r\nbad header\r\n\r\n",
                              "GET / HTTP/1.1\r\nA\x01: b\r\n\r\n",
                              "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                              "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                              "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
                              "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
                              "POST / HTTP/1.1\r\nContent-Length: 5, 6\r\n\r\nhello",
                              "POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello",
                              "POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\nhello",
                              "POST / HTTP/1.1\r\nContent-Length : 5\r\n\r\nhello",
                              "POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
                              "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
                              "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n",
                              "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                              "GET relative HTTP/1.1\r\n\r\n",
                              "GET /%zz HTTP/1.1\r\n\r\n",
                              "GET /%2 HTTP/1.1\r\n\r\n"}) {
    const std::string answer = Ask(request);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 Bad Request\r\n")) << request;
    EXPECT_THAT(answer, HasSubstr("{\"error\":\"")) << request;
  }
  EXPECT_EQ(handled_, 0);
  ExpectWell();
}

// A proxy in front may have taken the rest for a body, or for another client's request.
TEST_F(HttpServerTest, TakesNoSecondRequestFromABodyOfUnclearLength) {
  Start();
  for (const char* header :
       {"Content-Length: 4\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Content-Length: 0\r\nContent-Length: 40", "Transfer-Encoding : chunked"}) {
    const std::string answer = Ask(
        absl::StrCat("POST /one HTTP/1.1\r\n", header, "\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400")) << header;
    EXPECT_THAT(answer, Not(HasSubstr("/smuggled"))) << header;
  }
  // An encoding that is not chunked has no end that this server knows.
  const std::string encoded =
      Ask("POST /one HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n");
  EXPECT_THAT(encoded, StartsWith("HTTP/1.1 501"));
  EXPECT_THAT(encoded, Not(HasSubstr("/smuggled")));
  EXPECT_EQ(handled_, 0);
}

TEST_F(HttpServerTest, EndsSlowRequestsAndIdleConnections) {
  options_.request_timeout = absl::Milliseconds(300);
  options_.idle_timeout = absl::Milliseconds(300);
  Start();
  const RawHttpClient idle(server_->address());
  const RawHttpClient slow(server_->address());
  slow.Send("GET / HT");
  EXPECT_EQ(slow.ReceiveAll(), "");
  EXPECT_EQ(idle.ReceiveAll(), "");
  const RawHttpClient body(server_->address());
  body.Send("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhe");
  EXPECT_EQ(body.ReceiveAll(), "");
  EXPECT_EQ(handled_, 0);
  ExpectWell();
}

TEST_F(HttpServerTest, AThousandSilentConnectionsKeepNobodyOutForLong) {
  options_.max_connections = 100;
  options_.idle_timeout = absl::Seconds(3);
  Start();
  std::vector<RawHttpClient> silent;
  for (int i = 0; i < 1000; ++i) silent.emplace_back(server_->address());
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 503"));
  for (const RawHttpClient& each : silent) (void)each.ReceiveAll();
  ExpectWell();
}

TEST_F(HttpServerTest, BodiesOfAllConnectionsTogetherAreLimited) {
  options_.max_held_bytes = 250'000;
  Start();
  const std::string body(200'000, 'x');
  const std::string request = absl::StrCat("POST /large HTTP/1.1\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  const RawHttpClient waiting(server_->address());
  waiting.Send(absl::StrCat("POST /wait HTTP/1.1\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  while (handled_ == 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_THAT(Ask(request), StartsWith("HTTP/1.1 503"));
  ExpectWell();
  release_.Notify();
  EXPECT_THAT(waiting.ReceiveOne(), HasSubstr("POST /wait"));
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Ask(request), StartsWith("HTTP/1.1 200")) << "all bytes were freed";
}

TEST_F(HttpServerTest, ALargeAnswerIsRefusedWhileOthersAreNotRead) {
  options_.max_held_bytes = 25'000'000;
  options_.handler = [](const HttpRequest& request) -> HttpResponse {
    return {.body = request.path == "/large" ? std::string(20'000'000, 'x') : "small\n"};
  };
  Start();
  // Larger than the buffers between the two, so that part of it stays at the server.
  const RawHttpClient slow(server_->address());
  slow.Send("GET /large HTTP/1.1\r\n\r\n");
  EXPECT_THAT(slow.Receive([](const std::string& text) { return !text.empty(); }), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask("GET /large HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Ask("GET /small HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  slow.SendNothingMore();
  EXPECT_GT(slow.ReceiveAll().size(), 10'000'000);
  EXPECT_THAT(Ask("GET /large HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ABusyHandlerHoldsUpNoOtherThread) {
  options_.threads = 2;
  Start();
  const RawHttpClient waiting(server_->address());
  waiting.Send("GET /wait HTTP/1.1\r\n\r\n");
  while (handled_ == 0) absl::SleepFor(absl::Milliseconds(1));
  ExpectWell();
  release_.Notify();
  EXPECT_THAT(waiting.ReceiveOne(), HasSubstr("GET /wait"));
}

TEST_F(HttpServerTest, SurvivesClientsThatVanish) {
  Start();
  for (int i = 0; i < 200; ++i) {
    RawHttpClient client(server_->address());
    client.Send(i % 2 == 0 ? "GET / HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n"
                           : "POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n1");
    client.Reset();
  }
  ExpectWell();
}

TEST_F(HttpServerTest, SurvivesDamagedRequests) {
  options_.request_timeout = absl::Milliseconds(500);
  Start();
  const std::string good = "POST /a?b HTTP/1.1\r\nHost: h\r\nX-Who: me\r\nContent-Length: 5\r\n\r\nhello";
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    const int changes = 1 + static_cast<int>(random() % 8);
    for (int change = 0; change < changes; ++change) {
      const size_t at = random() % bad.size();
      if (random() % 3 == 0) {
        bad.erase(at, random() % 9);
      } else if (random() % 2 == 0) {
        bad.insert(at, bad.substr(random() % bad.size(), random() % 20));
      } else {
        bad[at] = static_cast<char>(random());
      }
      if (bad.empty()) bad = "x";
    }
    const RawHttpClient client(server_->address());
    client.Send(bad);
    client.SendNothingMore();
    (void)client.ReceiveAll();
  }
  ExpectWell();
}

TEST_F(HttpServerTest, StopsWhileClientsAreConnected) {
  Start();
  std::vector<RawHttpClient> clients;
  for (int i = 0; i < 20; ++i) {
    clients.emplace_back(server_->address());
    clients.back().Send(i % 2 == 0 ? "GET /" : "GET / HTTP/1.1\r\n\r\n");
  }
  server_->Stop();
  server_.reset();
  for (const RawHttpClient& client : clients) (void)client.ReceiveAll();
}

TEST_F(HttpServerTest, RefusesAddressesThatItCannotUse) {
  Start();
  options_.address = server_->address();
  EXPECT_THAT(HttpServer::Start(options_).status().message(),
              HasSubstr(absl::StrCat("HTTP address: got ", server_->address(), ", want one that is free")));
  for (const char* bad : {"", "7800", ":7800", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1"}) {
    options_.address = bad;
    EXPECT_EQ(HttpServer::Start(options_).status().message(),
              absl::StrCat("HTTP address: got \"", bad, "\", want HOST:PORT, such as 127.0.0.1:7800"));
  }
  options_.address = "no-such-host.invalid:80";
  EXPECT_TRUE(absl::IsInvalidArgument(HttpServer::Start(options_).status()));
}

}  // namespace
}  // namespace ballast
