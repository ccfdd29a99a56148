// SPDX-License-Identifier: Apache-2.0
#include "server/policies/slice_policy.h"

#include <cmath>
#include <vector>

#include "google/protobuf/text_format.h"
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

  static std::unique_ptr<SlicePolicy> Make(const char* config, uint32_t workers) {
    v1::ConsistencyPolicy policy;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(config, &policy)) << config;
    return *MakeSlicePolicy(policy, workers);
  }

  static std::unique_ptr<SlicePolicy> Sync(uint32_t workers) { return Make("sync { deterministic: true }", workers); }

  // A contribution of one example with two equal elements.
  PushDisposition OfferFrom(SlicePolicy& policy, uint32_t worker, uint64_t step, uint64_t from_version,
                            float gradient) {
    const std::vector<float> both = {gradient, gradient};
    return policy.Offer({.worker = worker, .step = step, .examples = 1}, from_version, Gradient(both), *weights_);
  }

  bool MayPull(const SlicePolicy& policy, uint32_t worker, uint64_t step) const {
    return policy.MayPull({.step = step, .worker = worker}, *weights_);
  }

  PushDisposition Offer(SlicePolicy& policy, uint32_t worker, uint64_t step, uint32_t examples,
                        std::vector<float> gradient) {
    return policy.Offer({.worker = worker, .step = step, .examples = examples}, 0, Gradient(gradient), *weights_);
  }

  using Ranks = std::vector<uint32_t>;

  std::vector<float> values() const { return {weights_->values().begin(), weights_->values().end()}; }

  v1::TensorSpec spec_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<SliceWeights> weights_;
};

TEST_F(SlicePolicyTest, SyncAppliesTheMeanOnceAllWorkersAreIn) {
  auto policy = Sync(2);
  EXPECT_EQ(Offer(*policy, 1, 0, 64, {2, 4}), PushDisposition::kBuffered);
  EXPECT_EQ(values(), (std::vector<float>{0, 0}));
  EXPECT_FALSE(policy->MayPull({.step = 1}, *weights_));
  EXPECT_EQ(policy->Missing({.step = 1}), std::vector<uint32_t>{0});
  EXPECT_EQ(Offer(*policy, 0, 0, 64, {4, 0}), PushDisposition::kApplied);
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
  EXPECT_EQ(Offer(*policy, 0, 0, 8, {1, 1}), PushDisposition::kBuffered);
  EXPECT_EQ(Offer(*policy, 1, 0, 0, {}), PushDisposition::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-1, -1}));
}

TEST_F(SlicePolicyTest, SyncStepWithoutAnyExampleMovesTheClockOnly) {
  auto policy = Sync(2);
  Offer(*policy, 0, 0, 0, {});
  EXPECT_EQ(Offer(*policy, 1, 0, 0, {}), PushDisposition::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{0, 0}));
  EXPECT_EQ(weights_->version(), 1);
}

TEST_F(SlicePolicyTest, SyncDropsWhatComesTooLateOrTwice) {
  auto policy = Sync(2);
  Offer(*policy, 0, 0, 1, {1, 1});
  EXPECT_EQ(Offer(*policy, 0, 0, 1, {9, 9}), PushDisposition::kDropped);
  Offer(*policy, 1, 0, 1, {1, 1});
  EXPECT_EQ(Offer(*policy, 1, 0, 1, {9, 9}), PushDisposition::kDropped);
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

TEST_F(SlicePolicyTest, DeterministicSyncGivesAGradientAloneTheSameBitsInEveryOrderOfArrival) {
  auto policy = Sync(2);
  Offer(*policy, 0, 0, 7, {0.1f, 0.3f});
  Offer(*policy, 1, 0, 0, {});
  const std::vector<float> first = values();
  EXPECT_EQ(first, (std::vector<float>{-0.1f, -0.3f}));
  Offer(*policy, 1, 1, 0, {});
  Offer(*policy, 0, 1, 7, {-0.1f, -0.3f});
  EXPECT_EQ(values(), (std::vector<float>{0, 0}));
}

TEST_F(SlicePolicyTest, SyncOfOneWorkerAppliesTheGradientAsItIs) {
  auto policy = Sync(1);
  EXPECT_EQ(Offer(*policy, 0, 0, 7, {0.1f, 0.3f}), PushDisposition::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-0.1f, -0.3f}));
}

TEST_F(SlicePolicyTest, SyncWithAQuorumAppliesTheMeanOfThoseThatAreIn) {
  auto policy = Make("sync { quorum: 2 }", 3);
  EXPECT_EQ(Offer(*policy, 2, 0, 3, {4, 0}), PushDisposition::kBuffered);
  EXPECT_EQ(policy->Missing({.step = 1}), (Ranks{0, 1}));
  EXPECT_EQ(Offer(*policy, 0, 0, 1, {0, 8}), PushDisposition::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-3, -2}));
}

TEST_F(SlicePolicyTest, SyncDropsWhatComesAfterItsQuorum) {
  auto policy = Make("sync { quorum: 2 }", 3);
  Offer(*policy, 0, 0, 1, {1, 1});
  Offer(*policy, 1, 0, 1, {1, 1});
  EXPECT_TRUE(policy->CheckStep(0, *weights_).ok());
  EXPECT_EQ(Offer(*policy, 2, 0, 1, {9, 9}), PushDisposition::kDropped);
  EXPECT_EQ(values(), (std::vector<float>{-1, -1}));
  EXPECT_TRUE(MayPull(*policy, 2, 1));
}

TEST_F(SlicePolicyTest, AWorkerThatFellBehindTakesPartWithAGradientOfTheNewestValues) {
  auto policy = Make("sync { quorum: 2 }", 3);
  for (uint64_t step = 0; step < 3; ++step) {
    OfferFrom(*policy, 0, step, step, 1);
    OfferFrom(*policy, 1, step, step, 1);
  }
  EXPECT_EQ(OfferFrom(*policy, 2, 0, 0, 9), PushDisposition::kDropped);
  EXPECT_EQ(OfferFrom(*policy, 2, 1, 3, 4), PushDisposition::kBuffered);
  EXPECT_EQ(OfferFrom(*policy, 2, 2, 3, 9), PushDisposition::kDropped) << "counts once per step";
  EXPECT_EQ(OfferFrom(*policy, 0, 3, 3, 2), PushDisposition::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-6, -6}));
}

TEST_F(SlicePolicyTest, DeterministicSyncFoldsAQuorumInRankOrder) {
  const std::vector<float> gradients = {0, 1e8f, -1e8f, 1.0f};
  auto policy = Make("sync { deterministic: true quorum: 3 }", 4);
  uint64_t step = 0;
  for (const Ranks& order : {Ranks{1, 2, 3}, Ranks{3, 2, 1}, Ranks{3, 1, 2}}) {
    const float before = values()[0];
    for (uint32_t rank : order) OfferFrom(*policy, rank, step, step, gradients[rank]);
    EXPECT_FLOAT_EQ(before - values()[0], 1.0f / 3) << step;
    ++step;
  }
}

TEST_F(SlicePolicyTest, SyncDoesNotWaitForWhoHasPaused) {
  auto policy = Sync(3);
  EXPECT_FALSE(policy->Pause(1, *weights_));
  EXPECT_EQ(Offer(*policy, 2, 0, 1, {2, 2}), PushDisposition::kBuffered);
  EXPECT_EQ(policy->Missing({.step = 1}), Ranks{0});
  EXPECT_EQ(Offer(*policy, 0, 0, 1, {4, 4}), PushDisposition::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-3, -3}));
}

TEST_F(SlicePolicyTest, APauseClosesTheStepOfThoseThatAreIn) {
  auto policy = Sync(3);
  Offer(*policy, 2, 0, 1, {2, 2});
  EXPECT_FALSE(policy->Pause(0, *weights_));
  EXPECT_TRUE(policy->Pause(1, *weights_));
  EXPECT_EQ(values(), (std::vector<float>{-2, -2}));
  EXPECT_TRUE(MayPull(*policy, 2, 1));
}

TEST_F(SlicePolicyTest, AContributionCountsThoughItsWorkerPausesAfterIt) {
  auto policy = Sync(2);
  Offer(*policy, 0, 0, 1, {2, 2});
  EXPECT_FALSE(policy->Pause(0, *weights_));
  EXPECT_EQ(Offer(*policy, 1, 0, 1, {4, 4}), PushDisposition::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-3, -3}));
}

TEST_F(SlicePolicyTest, WhereAllHavePausedNoStepPasses) {
  auto policy = Sync(2);
  EXPECT_FALSE(policy->Pause(0, *weights_));
  EXPECT_FALSE(policy->Pause(1, *weights_));
  EXPECT_EQ(weights_->version(), 0);
}

TEST_F(SlicePolicyTest, SyncWaitsAgainForAWorkerThatReturns) {
  auto policy = Sync(2);
  policy->Pause(1, *weights_);
  OfferFrom(*policy, 0, 0, 0, 1);
  OfferFrom(*policy, 0, 1, 1, 1);
  EXPECT_EQ(OfferFrom(*policy, 1, 0, 0, 9), PushDisposition::kDropped);
  EXPECT_EQ(OfferFrom(*policy, 0, 2, 2, 1), PushDisposition::kBuffered);
  EXPECT_EQ(policy->Missing({.step = 3, .worker = 0}), Ranks{1});
  EXPECT_EQ(OfferFrom(*policy, 1, 1, 2, 3), PushDisposition::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-4, -4}));
}

TEST_F(SlicePolicyTest, APullOfALaterStepWaitsAgainForThoseThatAreIn) {
  auto policy = Sync(2);
  Offer(*policy, 0, 0, 1, {1, 1});
  EXPECT_EQ(policy->Missing({.step = 1}), Ranks{1});
  EXPECT_EQ(policy->Missing({.step = 2}), (Ranks{0, 1}));
}

TEST_F(SlicePolicyTest, AsyncAppliesOnArrivalAndNeverWaits) {
  auto policy = Make("async { }", 4);
  EXPECT_EQ(Offer(*policy, 3, 17, 64, {1, 2}), PushDisposition::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-1, -2}));
  EXPECT_TRUE(policy->MayPull({.step = 99}, *weights_));
  EXPECT_TRUE(policy->Missing({.step = 1}).empty());
}

TEST_F(SlicePolicyTest, AsyncDividesTheRateByOnePlusStaleness) {
  auto policy = Make("async { scale_by_staleness: true }", 2);
  OfferFrom(*policy, 0, 0, 0, 1);
  OfferFrom(*policy, 0, 1, 1, 1);
  OfferFrom(*policy, 0, 2, 2, 1);
  EXPECT_EQ(values()[0], -3);
  OfferFrom(*policy, 1, 0, 0, 8);
  EXPECT_EQ(values()[0], -5) << "8 / (1 + 3)";
}

TEST_F(SlicePolicyTest, AsyncWithoutScalingTakesAStaleGradientAsItIs) {
  auto policy = Make("async { }", 2);
  OfferFrom(*policy, 0, 0, 0, 1);
  OfferFrom(*policy, 1, 0, 0, 8);
  EXPECT_EQ(values()[0], -9);
}

TEST_F(SlicePolicyTest, DelayCompensationCountsFromWhatTheWorkerWasHandedLast) {
  auto policy = Make("async { delay_compensation: 0.5 }", 2);
  policy->OnPull(1, *weights_);
  OfferFrom(*policy, 0, 0, 0, 1);
  policy->OnPull(0, *weights_);
  OfferFrom(*policy, 0, 1, 1, 1);
  // w is -2 and was 0: 4 + 0.5 * 4 * 4 * -2 = -12.
  OfferFrom(*policy, 1, 0, 0, 4);
  EXPECT_EQ(values(), (std::vector<float>{10, 10}));
  // w is 10 and was -1: 2 + 0.5 * 2 * 2 * 11 = 24.
  OfferFrom(*policy, 0, 2, 1, 2);
  EXPECT_EQ(values(), (std::vector<float>{-14, -14}));
}

TEST_F(SlicePolicyTest, DelayCompensationLeavesFreshGradientsAndWorkersThatNeverPulled) {
  auto policy = Make("async { delay_compensation: 0.5 }", 3);
  policy->OnPull(0, *weights_);
  OfferFrom(*policy, 0, 0, 0, 1);
  EXPECT_EQ(values(), (std::vector<float>{-1, -1}));
  OfferFrom(*policy, 1, 0, 0, 1);
  EXPECT_EQ(values(), (std::vector<float>{-2, -2}));
}

TEST_F(SlicePolicyTest, DelayCompensationIgnoresPullsOfRanksThatTheJobLacks) {
  auto policy = Make("async { delay_compensation: 0.5 }", 1);
  policy->OnPull(7, *weights_);
  OfferFrom(*policy, 0, 0, 0, 1);
  EXPECT_EQ(values(), (std::vector<float>{-1, -1}));
}

TEST_F(SlicePolicyTest, BoundedAppliesOnArrival) {
  auto policy = Make("bounded { staleness: 2 }", 2);
  EXPECT_EQ(OfferFrom(*policy, 0, 0, 0, 1), PushDisposition::kApplied);
  EXPECT_EQ(OfferFrom(*policy, 1, 0, 0, 2), PushDisposition::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-3, -3}));
}

TEST_F(SlicePolicyTest, BoundedLetsNobodyPullFurtherThanTheBoundAheadOfTheSlowest) {
  auto policy = Make("bounded { staleness: 2 }", 3);
  for (uint64_t step = 0; step < 3; ++step) OfferFrom(*policy, 0, step, step, 1);
  EXPECT_TRUE(MayPull(*policy, 0, 2));
  EXPECT_FALSE(MayPull(*policy, 0, 3));
  EXPECT_FALSE(policy->MayPull({.step = 3}, *weights_));
  EXPECT_EQ(policy->Missing({.step = 3, .worker = 0}), (Ranks{1, 2}));
  OfferFrom(*policy, 1, 0, 0, 1);
  EXPECT_EQ(policy->Missing({.step = 3, .worker = 0}), Ranks{2});
  OfferFrom(*policy, 2, 0, 0, 1);
  EXPECT_TRUE(MayPull(*policy, 0, 3));
}

TEST_F(SlicePolicyTest, BoundedDividesTheRateByOnePlusStalenessWhereAsked) {
  auto policy = Make("bounded { staleness: 2 scale_by_staleness: true }", 2);
  OfferFrom(*policy, 0, 0, 0, 1);
  OfferFrom(*policy, 1, 0, 0, 8);
  EXPECT_EQ(values()[0], -5);
}

TEST_F(SlicePolicyTest, BoundedDoesNotWaitForWhoHasPaused) {
  auto policy = Make("bounded { staleness: 0 }", 3);
  OfferFrom(*policy, 0, 0, 0, 1);
  OfferFrom(*policy, 1, 0, 1, 1);
  EXPECT_FALSE(MayPull(*policy, 0, 1));
  EXPECT_FALSE(policy->Pause(2, *weights_));
  EXPECT_TRUE(MayPull(*policy, 0, 1));
  EXPECT_TRUE(policy->Missing({.step = 1, .worker = 0}).empty());
}

TEST_F(SlicePolicyTest, BoundedWaitsForNobodyWhereAllHavePaused) {
  auto policy = Make("bounded { staleness: 0 }", 2);
  policy->Pause(0, *weights_);
  EXPECT_FALSE(MayPull(*policy, 0, 5));
  policy->Pause(1, *weights_);
  EXPECT_TRUE(MayPull(*policy, 0, 5));
}

TEST_F(SlicePolicyTest, AWorkerThatReturnsGoesOnAtTheClockOfTheSlowest) {
  auto policy = Make("bounded { staleness: 1 }", 3);
  policy->Pause(2, *weights_);
  for (uint64_t step = 0; step < 10; ++step) {
    OfferFrom(*policy, 0, step, 0, 1);
    OfferFrom(*policy, 1, step, 0, 1);
  }
  OfferFrom(*policy, 2, 0, 0, 1);
  EXPECT_TRUE(MayPull(*policy, 0, 11)) << "the returned worker's clock is 10, not 1";
  EXPECT_FALSE(MayPull(*policy, 0, 12));
  EXPECT_EQ(policy->Missing({.step = 12, .worker = 0}), (Ranks{0, 1, 2}));
  OfferFrom(*policy, 2, 1, 0, 1);
  EXPECT_EQ(policy->Missing({.step = 12, .worker = 0}), (Ranks{0, 1})) << "its clock is 11 after 2 steps";
}

TEST_F(SlicePolicyTest, AWorkerThatCatchesUpWaitsForNobodyAndGetsNoLeadByIt) {
  auto policy = Make("bounded { staleness: 1 }", 2);
  policy->Pause(1, *weights_);
  for (uint64_t step = 0; step < 10; ++step) OfferFrom(*policy, 0, step, 0, 1);
  for (uint64_t step = 0; step < 8; ++step) OfferFrom(*policy, 1, step, 0, 1);
  EXPECT_TRUE(MayPull(*policy, 1, 8));
  for (uint64_t step = 10; step < 13; ++step) OfferFrom(*policy, 0, step, 0, 1);
  // The slowest was at 10, so the clock is 12, not 10 + 7.
  EXPECT_TRUE(MayPull(*policy, 0, 13));
  EXPECT_FALSE(MayPull(*policy, 0, 14));
  EXPECT_EQ(policy->Missing({.step = 14, .worker = 0}), Ranks{1});
  EXPECT_FALSE(MayPull(*policy, 1, 14)) << "the bound applies to its own count";
}

TEST_F(SlicePolicyTest, AWorkerThatReturnsAheadKeepsItsClock) {
  auto policy = Make("bounded { staleness: 3 }", 2);
  for (uint64_t step = 0; step < 3; ++step) OfferFrom(*policy, 0, step, 0, 1);
  policy->Pause(0, *weights_);
  OfferFrom(*policy, 1, 0, 0, 1);
  OfferFrom(*policy, 0, 3, 0, 1);
  EXPECT_TRUE(MayPull(*policy, 0, 4));
  EXPECT_FALSE(MayPull(*policy, 0, 5));
}

TEST_F(SlicePolicyTest, TheSlowestClockStandsWhileNobodyTakesPart) {
  auto policy = Make("bounded { staleness: 0 }", 2);
  for (uint64_t step = 0; step < 5; ++step) {
    OfferFrom(*policy, 0, step, 0, 1);
    OfferFrom(*policy, 1, step, 0, 1);
  }
  policy->Pause(0, *weights_);
  policy->Pause(1, *weights_);
  // The worker restarted.
  OfferFrom(*policy, 1, 0, 0, 1);
  OfferFrom(*policy, 0, 5, 0, 1);
  EXPECT_EQ(policy->Missing({.step = 6, .worker = 0}), Ranks{1});
  OfferFrom(*policy, 1, 1, 0, 1);
  EXPECT_TRUE(MayPull(*policy, 0, 6)) << "6 steps are finished";
}

TEST_F(SlicePolicyTest, AStepGoesOnWithoutGradientsThatWereTakenAndLost) {
  // Three updates are lost: the workers have seen version 3, the slice is at 0.
  auto policy = Sync(3);
  policy->CatchUp(1, 3, 3, *weights_);
  EXPECT_EQ(weights_->version(), 3);
  EXPECT_EQ(weights_->applied(), 0);
  EXPECT_TRUE(MayPull(*policy, 0, 3));
  EXPECT_EQ(OfferFrom(*policy, 0, 2, 2, 1), PushDisposition::kDropped) << "a retry for a step that is over";
  // The second worker's gradient for step 3 was accepted, without an update, and is lost.
  policy->CatchUp(1, 3, 4, *weights_);
  EXPECT_EQ(policy->Missing({.step = 4, .worker = 0}), (Ranks{0, 2}));
  OfferFrom(*policy, 0, 3, 3, 2);
  EXPECT_EQ(OfferFrom(*policy, 2, 3, 3, 4), PushDisposition::kApplied);
  EXPECT_EQ(weights_->version(), 4);
  EXPECT_EQ(values()[0], -3) << "the mean of the two gradients that arrived";
  policy->CatchUp(1, 3, 4, *weights_);
  EXPECT_EQ(weights_->version(), 4) << "the slice was not behind";
}

TEST_F(SlicePolicyTest, GradientsOfAStepThatOthersHaveSeenOverAreUsedAllTheSame) {
  auto policy = Sync(2);
  EXPECT_EQ(OfferFrom(*policy, 1, 0, 0, 5), PushDisposition::kBuffered);
  // Its gradient for step 0 is lost, although it has seen the update.
  policy->CatchUp(0, 1, 1, *weights_);
  EXPECT_EQ(weights_->version(), 1);
  EXPECT_EQ(weights_->applied(), 1);
  EXPECT_EQ(values()[0], -5);
  EXPECT_TRUE(MayPull(*policy, 1, 1));
}

TEST_F(SlicePolicyTest, BoundedWorkersAreWhereTheySayThatTheyAre) {
  auto policy = Make("bounded { staleness: 1 }", 2);
  OfferFrom(*policy, 0, 0, 0, 1);
  OfferFrom(*policy, 1, 0, 0, 1);
  // Both lost the same nine steps, and would otherwise wait for each other.
  EXPECT_FALSE(MayPull(*policy, 0, 10));
  EXPECT_FALSE(MayPull(*policy, 1, 10));
  policy->CatchUp(1, 19, 10, *weights_);
  EXPECT_FALSE(MayPull(*policy, 1, 10)) << "the other worker has not reported it";
  policy->CatchUp(0, 20, 10, *weights_);
  EXPECT_TRUE(MayPull(*policy, 0, 10));
  EXPECT_TRUE(MayPull(*policy, 1, 11));
  EXPECT_FALSE(MayPull(*policy, 1, 12));
  EXPECT_EQ(weights_->version(), 20);
}

TEST_F(SlicePolicyTest, NoReportTakesASliceToAVersionThatNoJobReaches) {
  for (const char* config : {"sync {}", "async {}", "bounded {}"}) {
    auto policy = Make(config, 2);
    const uint64_t before = weights_->version();
    policy->CatchUp(0, ~uint64_t{0}, ~uint64_t{0}, *weights_);
    EXPECT_LE(weights_->version(), before + SliceWeights::kMostSkipped + 1) << config;
  }
}

TEST_F(SlicePolicyTest, BoundedRefusesStepsThatNoJobReaches) {
  auto policy = Make("bounded { staleness: 0 }", 2);
  EXPECT_TRUE(policy->CheckStep(1000000000, *weights_).ok());
  EXPECT_EQ(policy->CheckStep(~uint64_t{0}, *weights_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(MayPull(*policy, 0, ~uint64_t{0}));
}

TEST_F(SlicePolicyTest, LocalSgdAveragesTheRoundsOfAllWorkers) {
  auto policy = Make("local_sgd { local_steps: 8 learning_rate: 0.1 deterministic: true }", 2);
  EXPECT_EQ(Offer(*policy, 1, 0, 1, {2, 4}), PushDisposition::kBuffered);
  EXPECT_EQ(policy->Missing({.step = 1}), Ranks{0});
  EXPECT_EQ(Offer(*policy, 0, 0, 1, {4, 0}), PushDisposition::kApplied);
  EXPECT_EQ(values(), (std::vector<float>{-3, -2}));
}

TEST_F(SlicePolicyTest, RefusesAPolicyWithoutAKind) {
  EXPECT_EQ(MakeSlicePolicy({}, 1).status().message(), "policy: got nothing, want sync, async, bounded or local_sgd");
}

TEST_F(SlicePolicyTest, RefusesAQuorumOfMoreThanTheWorkers) {
  v1::ConsistencyPolicy config;
  config.mutable_sync()->set_quorum(3);
  EXPECT_EQ(MakeSlicePolicy(config, 2).status().message(),
            "policy.sync.quorum: got 3, want 1 to the number of workers, 2, or 0 for all of them");
}

}  // namespace
}  // namespace ballast
