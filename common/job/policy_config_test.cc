// SPDX-License-Identifier: Apache-2.0
#include "common/job/policy_config.h"

#include <limits>

#include "gtest/gtest.h"

namespace ballast {
namespace {

v1::ConsistencyPolicy Quorum(uint32_t quorum) {
  v1::ConsistencyPolicy policy;
  policy.mutable_sync()->set_quorum(quorum);
  return policy;
}

v1::ConsistencyPolicy Compensation(float lambda) {
  v1::ConsistencyPolicy policy;
  policy.mutable_async()->set_delay_compensation(lambda);
  return policy;
}

v1::ConsistencyPolicy Staleness(uint32_t staleness) {
  v1::ConsistencyPolicy policy;
  policy.mutable_bounded()->set_staleness(staleness);
  return policy;
}

v1::ConsistencyPolicy LocalSgd(uint32_t steps, float learning_rate) {
  v1::ConsistencyPolicy policy;
  policy.mutable_local_sgd()->set_local_steps(steps);
  policy.mutable_local_sgd()->set_learning_rate(learning_rate);
  return policy;
}

absl::Status Refused(absl::string_view message) { return absl::InvalidArgumentError(message); }

TEST(PolicyConfigTest, SaysWhatExistsWhereNoneIsSet) {
  EXPECT_EQ(ValidatePolicy({}, 2), Refused("policy: got nothing, want sync, async, bounded or local_sgd"));
  EXPECT_EQ(ValidatePolicy({}, 0), Refused("policy: got nothing, want sync, async, bounded or local_sgd"));
}

TEST(PolicyConfigTest, AQuorumIsAtMostTheWorkers) {
  EXPECT_EQ(ValidatePolicy(Quorum(0), 4), absl::OkStatus());
  EXPECT_EQ(ValidatePolicy(Quorum(4), 4), absl::OkStatus());
  EXPECT_EQ(ValidatePolicy(Quorum(5), 4),
            Refused("policy.sync.quorum: got 5, want 1 to the number of workers, 4, or 0 for all of them"));
}

TEST(PolicyConfigTest, AQuorumIsNotCheckedWhereTheWorkersAreNotKnown) {
  EXPECT_EQ(ValidatePolicy(Quorum(5), 0), absl::OkStatus());
}

TEST(PolicyConfigTest, DelayCompensationIsFiniteAndNotNegative) {
  EXPECT_EQ(ValidatePolicy(Compensation(0.04f), 2), absl::OkStatus());
  EXPECT_EQ(ValidatePolicy(Compensation(-1), 2),
            Refused("policy.async.delay_compensation: got -1, want a finite number of at least 0"));
  EXPECT_EQ(ValidatePolicy(Compensation(std::numeric_limits<float>::quiet_NaN()), 2),
            Refused("policy.async.delay_compensation: got nan, want a finite number of at least 0"));
  EXPECT_FALSE(ValidatePolicy(Compensation(std::numeric_limits<float>::infinity()), 2).ok());
}

TEST(PolicyConfigTest, StalenessIsAtMostAMillion) {
  EXPECT_EQ(ValidatePolicy(Staleness(0), 2), absl::OkStatus());
  EXPECT_EQ(ValidatePolicy(Staleness(1000000), 2), absl::OkStatus());
  EXPECT_EQ(ValidatePolicy(Staleness(1000001), 2), Refused("policy.bounded.staleness: got 1000001, want 0 to 1000000"));
}

TEST(PolicyConfigTest, LocalSgdTakesAtLeastOneStepAtARateAboveZero) {
  EXPECT_EQ(ValidatePolicy(LocalSgd(1, 0.1f), 2), absl::OkStatus());
  EXPECT_EQ(ValidatePolicy(LocalSgd(0, 0.1f), 2), Refused("policy.local_sgd.local_steps: got 0, want 1 to 1000000"));
  EXPECT_EQ(ValidatePolicy(LocalSgd(1000001, 0.1f), 2),
            Refused("policy.local_sgd.local_steps: got 1000001, want 1 to 1000000"));
  EXPECT_EQ(ValidatePolicy(LocalSgd(8, 0), 2),
            Refused("policy.local_sgd.learning_rate: got 0, want a finite number above 0"));
  EXPECT_FALSE(ValidatePolicy(LocalSgd(8, std::numeric_limits<float>::infinity()), 2).ok());
}

}  // namespace
}  // namespace ballast
