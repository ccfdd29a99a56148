// SPDX-License-Identifier: Apache-2.0
// HTTPS, as a client of OpenSSL sees it.
#include <gmock/gmock.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/http/http_server.h"
#include "common/http/testing/raw_http_client.h"
#include "common/security/key_folder.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct SslEnd {
  void operator()(SSL_CTX* it) const { SSL_CTX_free(it); }
  void operator()(BIO* it) const { BIO_free_all(it); }
  void operator()(X509* it) const { X509_free(it); }
};

class HttpServerTlsTest : public testing::Test {
 protected:
  HttpServerTlsTest() {
    std::filesystem::remove_all(path_);
    keys_ = KeyFolder::Make(path_, {"mnist", {"localhost"}, day_, day_}).value();
    options_.address = "127.0.0.1:0";
    options_.handler = [](const HttpRequest& request) {
      return HttpResponse{.body = absl::StrCat(request.path, " ", std::string(100'000, 'x'))};
    };
    options_.tls = {.certificate = path_ + "/server.pem", .key = path_ + "/server.key"};
  }
  ~HttpServerTlsTest() override { std::filesystem::remove_all(path_); }

  void Start() { server_ = HttpServer::Start(options_).value(); }

  // Response to a client that trusts the job's authority, and the number of the server's certificate.
  struct Answer {
    std::string text;
    std::string serial;
    // True if the server said that this is all.
    bool complete = false;
  };
  std::optional<Answer> Ask(const std::string& request, int version = 0) const {
    const std::unique_ptr<SSL_CTX, SslEnd> context(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    if (version != 0) SSL_CTX_set_max_proto_version(context.get(), version);
    EXPECT_EQ(SSL_CTX_load_verify_locations(context.get(), (path_ + "/ca.pem").c_str(), nullptr), 1);
    const std::unique_ptr<BIO, SslEnd> bio(BIO_new_ssl_connect(context.get()));
    BIO_set_conn_hostname(bio.get(), server_->address().c_str());
    if (BIO_do_connect(bio.get()) != 1 || BIO_do_handshake(bio.get()) != 1) return std::nullopt;
    SSL* ssl = nullptr;
    BIO_get_ssl(bio.get(), &ssl);
    Answer answer;
    const std::unique_ptr<X509, SslEnd> certificate(SSL_get1_peer_certificate(ssl));
    const ASN1_INTEGER* serial = X509_get0_serialNumber(certificate.get());
    answer.serial.assign(reinterpret_cast<const char*>(serial->data), serial->length);
    BIO_write(bio.get(), request.data(), static_cast<int>(request.size()));
    char buffer[4096];
    for (int got = 0; (got = BIO_read(bio.get(), buffer, sizeof(buffer))) > 0;) answer.text.append(buffer, got);
    answer.complete = (SSL_get_shutdown(ssl) & SSL_RECEIVED_SHUTDOWN) != 0;
    return answer;
  }

  const std::string path_ = testing::TempDir() + "/http_server_tls_test";
  const CertificateAuthority::Validity day_ = {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(24)};
  std::optional<KeyFolder> keys_;
  HttpServer::Options options_;
  std::unique_ptr<HttpServer> server_;
};

constexpr char kRequest[] = "GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n";

TEST_F(HttpServerTlsTest, AnswersAndSaysThatThisIsAll) {
  Start();
  const std::optional<Answer> answer = Ask(kRequest);
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->text, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer->text, HasSubstr("\r\n\r\n/metrics xxx"));
  EXPECT_GT(answer->text.size(), 100'000u);
  EXPECT_TRUE(answer->complete);
}

TEST_F(HttpServerTlsTest, SpeaksNoOldVersion) {
  Start();
  EXPECT_FALSE(Ask(kRequest, TLS1_1_VERSION).has_value());
  EXPECT_TRUE(Ask(kRequest, TLS1_2_VERSION).has_value());
}

TEST_F(HttpServerTlsTest, TakesRenewedFilesWithoutARestart) {
  Start();
  const std::string before = Ask(kRequest)->serial;
  EXPECT_EQ(Ask(kRequest)->serial, before);
  ASSERT_TRUE(keys_->Renew(day_).ok());
  EXPECT_NE(Ask(kRequest)->serial, before);
}

TEST_F(HttpServerTlsTest, KeepsItsFilesWhileTheyAreBeingReplaced) {
  Start();
  const std::string before = Ask(kRequest)->serial;
  std::filesystem::copy_file(path_ + "/client.key", path_ + "/server.key",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(Ask(kRequest)->serial, before) << "of a certificate with another key";
  std::filesystem::remove(path_ + "/server.key");
  EXPECT_EQ(Ask(kRequest)->serial, before) << "of no key";
}

TEST_F(HttpServerTlsTest, OutlivesClientsThatSpeakSomethingElse) {
  options_.request_timeout = absl::Milliseconds(300);
  Start();
  {
    const RawHttpClient plain(server_->address());
    plain.Send(kRequest);
    EXPECT_EQ(plain.ReceiveAll().find("HTTP/"), std::string::npos);
    const RawHttpClient silent(server_->address());
    EXPECT_EQ(silent.ReceiveAll(), "") << "a handshake that does not begin ends in time";
  }
  EXPECT_TRUE(Ask(kRequest).has_value());
}

TEST_F(HttpServerTlsTest, RefusesFilesThatDoNotFit) {
  options_.tls.key = path_ + "/client.key";
  EXPECT_THAT(HttpServer::Start(options_).status().message(), HasSubstr(path_ + "/client.key"));
  options_.tls.key = path_ + "/missing.key";
  EXPECT_THAT(HttpServer::Start(options_).status().message(), HasSubstr(path_ + "/missing.key"));
}

}  // namespace
}  // namespace ballast
