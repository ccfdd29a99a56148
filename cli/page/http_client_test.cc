// SPDX-License-Identifier: Apache-2.0
#include "cli/page/http_client.h"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/security/key_folder.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class HttpClientTest : public testing::Test {
 protected:
  HttpClientTest() {
    options_.address = "127.0.0.1:0";
    options_.handler = [this](const HttpRequest& request) {
      ++requests_;
      return HttpResponse{.status = request.path == "/missing" ? 404 : 200,
                          .body = absl::StrCat(request.path, " ", request.Header("authorization"), " ",
                                               std::string(request.path == "/long" ? 1'000'000 : 0, 'x'))};
    };
  }
  ~HttpClientTest() override { std::filesystem::remove_all(keys_); }

  void Start() { server_ = HttpServer::Start(options_).value(); }
  std::unique_ptr<HttpClient> Open(HttpClient::Options options = {}) const {
    options.address = server_->address();
    return HttpClient::Open(options).value();
  }
  void MakeKeys(const std::string& path) const {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    const CertificateAuthority::Validity day = {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(24)};
    ASSERT_TRUE(KeyFolder::Make(path, {"mnist", {"localhost"}, day, day}).ok());
  }

  const std::string keys_ = testing::TempDir() + "/http_client_test";
  std::atomic<int> requests_ = 0;
  HttpServer::Options options_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpClientTest, ReadsPagesOverOneConnection) {
  options_.max_connections = 1;
  Start();
  const auto client = Open({.token = "secret"});
  for (int i = 0; i < 3; ++i) {
    const auto page = client->Get("/metrics", absl::Seconds(10));
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_EQ(page->status, 200);
    EXPECT_EQ(page->body, "/metrics Bearer secret ");
  }
  const auto missing = client->Get("/missing", absl::Seconds(10));
  ASSERT_TRUE(missing.ok()) << missing.status();
  EXPECT_EQ(missing->status, 404);
  EXPECT_EQ(requests_, 4);
}

TEST_F(HttpClientTest, ConnectsAgainWhenTheServerHasClosedTheConnection) {
  Start();
  options_.address = server_->address();
  const auto client = Open();
  ASSERT_TRUE(client->Get("/a", absl::Seconds(10)).ok());
  server_.reset();
  EXPECT_EQ(client->Get("/a", absl::Seconds(10)).status().code(), absl::StatusCode::kUnavailable);
  Start();
  const auto page = client->Get("/b", absl::Seconds(10));
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->body, "/b  ");
}

TEST_F(HttpClientTest, RefusesALongResponse) {
  Start();
  const absl::Status status = Open({.max_response_bytes = 1000})->Get("/long", absl::Seconds(10)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr(server_->address()));
}

TEST_F(HttpClientTest, GivesUpOnASilentServer) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  socklen_t length = sizeof(address);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  const auto client = HttpClient::Open({.address = absl::StrCat("127.0.0.1:", ntohs(address.sin_port))});
  ASSERT_TRUE(client.ok());
  EXPECT_EQ((*client)->Get("/", absl::Milliseconds(50)).status().code(), absl::StatusCode::kDeadlineExceeded);
  close(listener);
}

TEST_F(HttpClientTest, TrustsOnlyTheGivenAuthority) {
  MakeKeys(keys_ + "/own");
  MakeKeys(keys_ + "/other");
  options_.tls = {.certificate = keys_ + "/own/server.pem", .key = keys_ + "/own/server.key"};
  Start();
  const auto client = Open({.authorities = keys_ + "/own/ca.pem"});
  for (const char* path : {"/long", "/b"}) {
    const auto page = client->Get(path, absl::Seconds(10));
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_EQ(page->status, 200);
  }
  const absl::Status status = Open({.authorities = keys_ + "/other/ca.pem"})->Get("/a", absl::Seconds(10)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("certificate"));
}

// OpenSSL writes to the closed connection without asking for an error instead of SIGPIPE, which would end the process.
TEST_F(HttpClientTest, OutlivesAServerThatEndsUnderTls) {
  MakeKeys(keys_ + "/own");
  options_.tls = {.certificate = keys_ + "/own/server.pem", .key = keys_ + "/own/server.key"};
  for (int round = 0; round < 20; ++round) {
    Start();
    const auto client = Open({.authorities = keys_ + "/own/ca.pem"});
    ASSERT_TRUE(client->Get("/a", absl::Seconds(10)).ok());
    server_.reset();
    EXPECT_EQ(client->Get("/a", absl::Seconds(10)).status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST_F(HttpClientTest, RefusesWhatIsNoAddressOrNoCertificate) {
  for (const char* address : {"", "host", "host:", "host:0", "host:70000", ":80"}) {
    EXPECT_EQ(HttpClient::Open({.address = address}).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  EXPECT_EQ(HttpClient::Open({.address = "a:1", .authorities = "/no/file"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
