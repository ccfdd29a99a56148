// SPDX-License-Identifier: Apache-2.0
#include "common/job/policy_config.h"

#include <string>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

absl::Status Validate(const std::string& text, uint32_t workers = 2) {
  v1::ConsistencyPolicy policy;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &policy)) << text;
  return ValidatePolicy(policy, workers);
}

absl::Status Refused(absl::string_view message) { return absl::InvalidArgumentError(message); }

TEST(PolicyConfigTest, SaysWhatExistsWhereNoneIsSet) {
  EXPECT_EQ(Validate(""), Refused("policy: got nothing, want sync, async, bounded or local_sgd"));
  EXPECT_EQ(Validate("", 0), Refused("policy: got nothing, want sync, async, bounded or local_sgd"));
}

TEST(PolicyConfigTest, AQuorumIsAtMostTheWorkers) {
  EXPECT_EQ(Validate("sync { quorum: 0 }", 4), absl::OkStatus());
  EXPECT_EQ(Validate("sync { quorum: 4 }", 4), absl::OkStatus());
  EXPECT_EQ(Validate("sync { quorum: 5 }", 4),
            Refused("policy.sync.quorum: got 5, want 1 to the number of workers, 4, or 0 for all of them"));
}

TEST(PolicyConfigTest, AQuorumIsNotCheckedWhereTheWorkersAreNotKnown) {
  EXPECT_EQ(Validate("sync { quorum: 5 }", 0), absl::OkStatus());
}

TEST(PolicyConfigTest, DelayCompensationIsFiniteAndNotNegative) {
  EXPECT_EQ(Validate("async { delay_compensation: 0.04 }"), absl::OkStatus());
  EXPECT_EQ(Validate("async { delay_compensation: -1 }"),
            Refused("policy.async.delay_compensation: got -1, want a finite number of at least 0"));
  EXPECT_EQ(Validate("async { delay_compensation: nan }"),
            Refused("policy.async.delay_compensation: got nan, want a finite number of at least 0"));
  EXPECT_FALSE(Validate("async { delay_compensation: inf }").ok());
}

TEST(PolicyConfigTest, StalenessIsAtMostAMillion) {
  EXPECT_EQ(Validate("bounded { staleness: 0 }"), absl::OkStatus());
  EXPECT_EQ(Validate("bounded { staleness: 1000000 }"), absl::OkStatus());
  EXPECT_EQ(Validate("bounded { staleness: 1000001 }"),
            Refused("policy.bounded.staleness: got 1000001, want 0 to 1000000"));
}

TEST(PolicyConfigTest, LocalSgdTakesAtLeastOneStepAtARateAboveZero) {
  EXPECT_EQ(Validate("local_sgd { local_steps: 1 learning_rate: 0.1 }"), absl::OkStatus());
  EXPECT_EQ(Validate("local_sgd { local_steps: 0 learning_rate: 0.1 }"),
            Refused("policy.local_sgd.local_steps: got 0, want 1 to 1000000"));
  EXPECT_EQ(Validate("local_sgd { local_steps: 1000001 learning_rate: 0.1 }"),
            Refused("policy.local_sgd.local_steps: got 1000001, want 1 to 1000000"));
  EXPECT_EQ(Validate("local_sgd { local_steps: 8 learning_rate: 0 }"),
            Refused("policy.local_sgd.learning_rate: got 0, want a finite number above 0"));
  EXPECT_FALSE(Validate("local_sgd { local_steps: 8 learning_rate: inf }").ok());
}

}  // namespace
}  // namespace ballast
