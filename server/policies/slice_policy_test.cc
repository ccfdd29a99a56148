// SPDX-License-Identifier: Apache-2.0
#include "server/policies/slice_policy.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

class SlicePolicyTest : public testing::Test {
 protected:
  SlicePolicyTest() {
    spec_.set_name("w");
    spec_.add_shape(2);
    spec_.mutable_optimizer()->mutable_sgd()->set_learning_rate(1.0f);
    optimizer_ = *MakeOptimizer(spec_.optimizer());
    v1::SliceRange range;
    range.set_elements(2);
    weights_ = std::make_unique<SliceWeights>(spec_, range, optimizer_.get());
  }

  std::unique_ptr<SlicePolicy> Sync(uint32_t workers, bool deterministic = true) {
    v1::ConsistencyPolicy config;
    config.mutable_sync()->set_deterministic(deterministic);
    return *MakeSlicePolicy(config, workers);
  }

  Verdict Offer(SlicePolicy& policy, uint32_t worker, uint64_t step, uint32_t examples, std::vector<float> gradient) {
    return policy.Offer({worker, step, examples, 0, Gradient(gradient)}, *weights_);
  }

  std::vector<float> values() const { return {weights_->values().begin(), weights_->values().end()}; }

  v1::TensorSpec spec_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<SliceWeights> weights_;
};

TEST_F(SlicePolicyTest, SyncAppliesTheMeanOnceAllWorkersAreIn) {
  auto policy = Sync(2);
  EXPECT_EQ(Offer(*policy, 1, 0, 64, {2, 4}), Verdict::kKept);
  EXPECT_EQ(values(), (std::vector<float>{0, 0}));
  EXPECT_FALSE(policy->MayPull({.step = 1}, *weights_));
  EXPECT_EQ(policy->Missing({.step = 1}), std::vector<uint32_t>{0});
  EXPECT_EQ(Offer(*policy, 0, 0, 64, {4, 0}), Verdict::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-3, -2}));
  EXPECT_TRUE(policy->MayPull({.step = 1}, *weights_));
}

TEST_F(SlicePolicyTest, SyncWeighsTheMeanByExamples) {
  auto policy = Sync(2);
  Offer(*policy, 0, 0, 3, {4, 0});
  Offer(*policy, 1, 0, 1, {0, 8});
  EXPECT_EQ(values(), (std::vector<float>{-3, -2}));
}

TEST_F(SlicePolicyTest, SyncTakesAWorkerWithoutExamplesIntoTheStep) {
  auto policy = Sync(2);
  EXPECT_EQ(Offer(*policy, 0, 0, 8, {1, 1}), Verdict::kKept);
  EXPECT_EQ(Offer(*policy, 1, 0, 0, {}), Verdict::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-1, -1}));
}

TEST_F(SlicePolicyTest, SyncStepWithoutAnyExampleMovesTheClockOnly) {
  auto policy = Sync(2);
  Offer(*policy, 0, 0, 0, {});
  EXPECT_EQ(Offer(*policy, 1, 0, 0, {}), Verdict::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{0, 0}));
  EXPECT_EQ(weights_->version(), 1);
}

TEST_F(SlicePolicyTest, SyncDropsWhatComesTooLateOrTwice) {
  auto policy = Sync(2);
  Offer(*policy, 0, 0, 1, {1, 1});
  EXPECT_EQ(Offer(*policy, 0, 0, 1, {9, 9}), Verdict::kDropped);
  Offer(*policy, 1, 0, 1, {1, 1});
  EXPECT_EQ(Offer(*policy, 1, 0, 1, {9, 9}), Verdict::kDropped);
  EXPECT_EQ(values(), (std::vector<float>{-1, -1}));
}

TEST_F(SlicePolicyTest, SyncRefusesAStepWhoseUpdateBeforeIsMissing) {
  auto policy = Sync(2);
  EXPECT_TRUE(policy->CheckStep(0, *weights_).ok());
  EXPECT_EQ(policy->CheckStep(1, *weights_).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SlicePolicyTest, DeterministicSyncGivesTheSameBitsInEveryOrderOfArrival) {
  const std::vector<std::vector<float>> gradients = {{1e8f, 0.1f}, {-1e8f, 0.2f}, {1.0f, 0.3f}};
  std::vector<std::vector<uint32_t>> orders = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  auto policy = Sync(3);
  std::vector<float> first;
  for (uint64_t step = 0; step < orders.size(); ++step) {
    const std::vector<float> before = values();
    for (uint32_t rank : orders[step]) Offer(*policy, rank, step, 7, gradients[rank]);
    // ((1e8 - 1e8) + 1) / 3 only in rank order; any other order loses the 1.
    EXPECT_FLOAT_EQ(before[0] - values()[0], 1.0f / 3) << step;
    EXPECT_FLOAT_EQ(before[1] - values()[1], 0.2f) << step;
  }
}

TEST_F(SlicePolicyTest, AsyncAppliesOnArrivalAndNeverWaits) {
  v1::ConsistencyPolicy config;
  config.mutable_async();
  auto policy = *MakeSlicePolicy(config, 4);
  EXPECT_EQ(Offer(*policy, 3, 17, 64, {1, 2}), Verdict::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-1, -2}));
  EXPECT_TRUE(policy->MayPull({.step = 99}, *weights_));
  EXPECT_TRUE(policy->Missing({.step = 1}).empty());
}

TEST_F(SlicePolicyTest, RefusesAPolicyWithoutAKind) {
  EXPECT_EQ(MakeSlicePolicy({}, 1).status().message(), "policy: got none, want sync or async");
}

}  // namespace
}  // namespace ballast
