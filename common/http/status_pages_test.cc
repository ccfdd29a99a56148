// SPDX-License-Identifier: Apache-2.0
#include "common/http/status_pages.h"

#include <gmock/gmock.h>

#include <optional>

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class StatusPagesTest : public testing::Test {
 protected:
  HttpResponse Get(const std::string& path, const std::string& token = "") {
    StatusPages::Sources sources;
    sources.metrics = [] { return std::string("up 1\n"); };
    sources.flight = [] { return std::string("{}\n"); };
    sources.ready = [this] { return ready_; };
    sources.job = [this] { return job_; };
    const StatusPages pages(sources, tokens_.has_value() ? &*tokens_ : nullptr);
    HttpRequest request{.method = method_, .path = path};
    if (!token.empty()) request.headers.emplace_back("Authorization", token);
    return pages.Answer(request);
  }

  absl::Status ready_;
  std::string job_ = "mnist";
  std::optional<TokenTable> tokens_;
  std::string method_ = "GET";
};

TEST_F(StatusPagesTest, ProbesAreOpenAndSayNothingAboutTheJob) {
  tokens_ = TokenTable::Parse("admin * secret-of-the-admin-0123456789abcdef0123456789", "tokens").value();
  EXPECT_EQ(Get("/healthz").body, "ok\n");
  EXPECT_EQ(Get("/readyz").body, "ok\n");
  ready_ = absl::UnavailableError("the server is starting");
  EXPECT_EQ(Get("/healthz").status, 200);
  EXPECT_EQ(Get("/readyz").status, 503);
  EXPECT_EQ(Get("/readyz").body, "the server is starting\n");
}

TEST_F(StatusPagesTest, MetricsNeedATokenOfTheJob) {
  EXPECT_EQ(Get("/metrics").status, 200) << "no tokens are needed";
  EXPECT_EQ(Get("/flight").body, "{}\n");
  tokens_ = TokenTable::Parse(
                "admin * secret-of-the-admin-0123456789abcdef0123456789\nreader mnist "
                "secret-of-mnist-0123456789abcdef0123456789\nreader other secret-of-other-0123456789abcdef0123456789",
                "tokens")
                .value();
  EXPECT_EQ(Get("/metrics").status, 401);
  EXPECT_EQ(Get("/flight").status, 401);
  EXPECT_EQ(Get("/metrics", "Bearer secret").status, 401);
  EXPECT_EQ(Get("/metrics", "secret-of-mnist-0123456789abcdef0123456789").status, 401);
  EXPECT_EQ(Get("/metrics", "Bearer secret-of-other-0123456789abcdef0123456789").status, 403);
  EXPECT_EQ(Get("/metrics", "Bearer secret-of-mnist-0123456789abcdef0123456789").status, 200);
  EXPECT_EQ(Get("/metrics", "bearer  secret-of-the-admin-0123456789abcdef0123456789 ").status, 200);
  EXPECT_EQ(Get("/metrics", "Bearer secret-of-mnist-0123456789abcdef0123456789").body, "up 1\n");
  EXPECT_THAT(Get("/metrics", "Bearer secret-of-other-0123456789abcdef0123456789").body, Not(HasSubstr("mnist")));
  job_ = "";
  EXPECT_EQ(Get("/metrics", "Bearer secret-of-other-0123456789abcdef0123456789").status, 200)
      << "before there is a job";
}

TEST_F(StatusPagesTest, RefusesOtherPagesAndMethods) {
  EXPECT_EQ(Get("/").status, 404);
  EXPECT_EQ(Get("/metrics/").status, 404);
  method_ = "POST";
  EXPECT_EQ(Get("/healthz").status, 405);
}

}  // namespace
}  // namespace ballast
