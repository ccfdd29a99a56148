// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_security.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/security/private_file.h"
#include "common/security/tls_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class LaunchSecurityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(run_);
    std::filesystem::create_directories(run_);
  }
  void TearDown() override { std::filesystem::remove_all(run_); }

  std::unique_ptr<LaunchSecurity> Create() const {
    return LaunchSecurity::Create(run_, "mnist", {"192.0.2.10"}, now_).value();
  }

  std::string Certificate() const { return ReadPrivateFile(run_ + "/security/server.pem", "file").value(); }

  const std::string run_ = ::testing::TempDir() + "/launch_security_test";
  const absl::Time now_ = absl::Now();
};

TEST_F(LaunchSecurityTest, LeavesNothingBehind) {
  {
    const auto security = Create();
    EXPECT_THAT(security->keys().ServerFlags(), Contains(run_ + "/security/server.key"));
    EXPECT_TRUE(std::filesystem::exists(run_ + "/security/server.key"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(run_));
}

TEST_F(LaunchSecurityTest, IsFoundByWhoLooksAsLongAsItLasts) {
  {
    const auto security = Create();
    const absl::StatusOr<SecurityOptions> reader = LaunchSecurity::OfReader(run_);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ(CheckTlsFiles(reader->tls, now_), absl::OkStatus());
    EXPECT_EQ(reader->token_file, run_ + "/security/reader.token");
  }
  const absl::Status gone = LaunchSecurity::OfReader(run_).status();
  EXPECT_TRUE(absl::IsNotFound(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()), HasSubstr("the launch has ended or runs with --insecure"));
}

TEST_F(LaunchSecurityTest, RenewsCertificatesWhenHalfOfTheirTimeIsOver) {
  const auto security = Create();
  const std::string first = Certificate();
  ASSERT_EQ(security->RenewIfDue(now_ + absl::Hours(11)), absl::OkStatus());
  EXPECT_EQ(Certificate(), first);
  ASSERT_EQ(security->RenewIfDue(now_ + absl::Hours(13)), absl::OkStatus());
  const std::string second = Certificate();
  EXPECT_NE(second, first);
  EXPECT_EQ(CheckTlsFiles({run_ + "/security/server.pem", run_ + "/security/server.key", ""}, now_ + absl::Hours(36)),
            absl::OkStatus());
  ASSERT_EQ(security->RenewIfDue(now_ + absl::Hours(14)), absl::OkStatus());
  EXPECT_EQ(Certificate(), second);
}

}  // namespace
}  // namespace ballast
