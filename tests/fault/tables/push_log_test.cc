// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/tables/push_log.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class PushLogTest : public testing::Test {
 protected:
  PushLogTest() {
    auto log = PushLog::Create(path_);
    EXPECT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
  }

  const std::string path_ = absl::StrCat(testing::TempDir(), "/push_log");
  std::unique_ptr<PushLog> log_;
};

TEST_F(PushLogTest, TellsAcknowledgedPushesFromUnknownOnes) {
  for (uint64_t number = 0; number < 4; ++number) EXPECT_TRUE(log_->Begin(number).value_or(false));
  EXPECT_EQ(log_->Acknowledge(1, {}, {}), absl::OkStatus());
  EXPECT_EQ(log_->Acknowledge(0, {}, {}), absl::OkStatus());
  const auto pushes = PushLog::Read(path_);
  ASSERT_TRUE(pushes.ok()) << pushes.status();
  EXPECT_THAT(pushes->acknowledged, ElementsAre(1, 0));
  EXPECT_THAT(pushes->unknown, ElementsAre(2, 3));
}

TEST_F(PushLogTest, StartsEmpty) {
  EXPECT_TRUE(log_->Begin(0).ok());
  log_ = *PushLog::Create(path_);
  const auto pushes = PushLog::Read(path_);
  ASSERT_TRUE(pushes.ok()) << pushes.status();
  EXPECT_THAT(pushes->acknowledged, IsEmpty());
  EXPECT_THAT(pushes->unknown, IsEmpty());
}

TEST_F(PushLogTest, RefusesAnAcknowledgementOfAPushThatDidNotBegin) {
  EXPECT_EQ(log_->Acknowledge(1, {}, {}), absl::OkStatus());
  EXPECT_EQ(PushLog::Read(path_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(PushLogTest, RefusesAnIncompleteRecord) {
  EXPECT_TRUE(log_->Begin(0).ok());
  std::ofstream(path_, std::ios::app) << "abc";
  EXPECT_EQ(PushLog::Read(path_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(PushLogTest, NamesAFileThatDoesNotExist) {
  EXPECT_EQ(PushLog::Read(path_ + "-none").status().message(), absl::StrCat("cannot read ", path_, "-none"));
}

}  // namespace
}  // namespace ballast
