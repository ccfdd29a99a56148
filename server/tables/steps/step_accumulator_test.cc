// SPDX-License-Identifier: Apache-2.0
#include "server/tables/steps/step_accumulator.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

BufferedRows Rows(const StepMessage& place, uint64_t sequence, uint32_t examples, std::vector<uint64_t> hashes,
                  const std::vector<float>& gradients) {
  BufferedRows rows{place.worker, place.incarnation, sequence, examples, std::move(hashes), {}};
  rows.gradients = ValueBuffer(gradients.size());
  std::copy(gradients.begin(), gradients.end(), rows.gradients.mutable_values().data());
  return rows;
}

// Two workers; each message has the row 10 with one element.
class StepAccumulatorTest : public testing::Test {
 protected:
  StepAccumulator::Offered Offer(uint32_t worker, uint64_t step, uint32_t messages_of_step, float gradient,
                                 uint64_t incarnation = 1) {
    const StepMessage place{worker, incarnation, step, messages_of_step};
    StepAccumulator::Offered offered = steps_.Offer(place, Rows(place, ++sequence_, 1, {10}, {gradient}), {});
    if (offered.closed.has_value()) steps_.SetApplied();
    return offered;
  }

  static float SumOf(const std::optional<StepAccumulator::Closed>& closed) {
    return closed.value().Merge(1).gradients.values()[0];
  }

  StepAccumulator steps_{2, 2};
  uint64_t sequence_ = 0;
};

TEST_F(StepAccumulatorTest, AStepClosesWithItsLastWorker) {
  EXPECT_FALSE(Offer(1, 0, 1, 1).closed.has_value());
  EXPECT_FALSE(steps_.MayPull(1));
  EXPECT_THAT(steps_.Missing(1), ElementsAre(0));
  const StepAccumulator::Offered last = Offer(0, 0, 1, 2);
  ASSERT_TRUE(last.closed.has_value());
  EXPECT_EQ(last.closed->examples, 2);
  EXPECT_EQ(SumOf(last.closed), 3);
  EXPECT_TRUE(steps_.MayPull(1));
}

TEST_F(StepAccumulatorTest, AWorkerCountsOnceItsStepIsComplete) {
  Offer(0, 0, 1, 1);
  EXPECT_FALSE(Offer(1, 0, 2, 1).closed.has_value());
  const StepAccumulator::Offered last = Offer(1, 0, 0, 4);
  ASSERT_TRUE(last.closed.has_value());
  EXPECT_EQ(last.closed->examples, 2);
  EXPECT_EQ(SumOf(last.closed), 6);
}

TEST_F(StepAccumulatorTest, APullWaitsUntilAClosedStepIsApplied) {
  const StepMessage first{0, 1, 0, 1}, second{1, 1, 0, 1};
  steps_.Offer(first, Rows(first, 1, 1, {}, {}), {});
  ASSERT_TRUE(steps_.Offer(second, Rows(second, 1, 1, {}, {}), {}).closed.has_value());
  EXPECT_FALSE(steps_.MayPull(1));
  EXPECT_EQ(steps_.CheckStep(1).code(), absl::StatusCode::kFailedPrecondition);
  steps_.SetApplied();
  EXPECT_TRUE(steps_.MayPull(1));
  EXPECT_TRUE(steps_.CheckStep(1).ok());
}

TEST_F(StepAccumulatorTest, AStepThatAPausedWorkerLeftUnfinishedIsDiscarded) {
  Offer(1, 0, 0, 100);
  Offer(0, 0, 1, 2);
  const std::optional<StepAccumulator::Closed> closed = steps_.Pause(1);
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->examples, 1);
  EXPECT_EQ(SumOf(closed), 2);
}

TEST_F(StepAccumulatorTest, AStepThatAPausedWorkerCompletedCounts) {
  Offer(1, 0, 1, 100);
  EXPECT_FALSE(steps_.Pause(1).has_value());
  EXPECT_EQ(SumOf(Offer(0, 0, 1, 2).closed), 102);
}

TEST_F(StepAccumulatorTest, ANewIncarnationSendsAnUnfinishedStepWhole) {
  Offer(1, 0, 0, 100);
  Offer(1, 0, 1, 4, /*incarnation=*/2);
  EXPECT_TRUE(Offer(1, 0, 2, 100).dropped) << "the earlier incarnation is over";
  EXPECT_EQ(SumOf(Offer(0, 0, 1, 2).closed), 6);
}

TEST_F(StepAccumulatorTest, AStepThatIsCompleteIsNotTakenAgain) {
  Offer(1, 0, 1, 100);
  EXPECT_TRUE(Offer(1, 0, 1, 100, /*incarnation=*/2).dropped);
  EXPECT_EQ(SumOf(Offer(0, 0, 1, 2).closed), 102);
}

TEST_F(StepAccumulatorTest, AQuorumClosesAndDropsTheLate) {
  StepAccumulator steps(3, 2);
  const StepMessage a{0, 1, 0, 1}, b{1, 1, 0, 1}, late{2, 1, 0, 0}, end{2, 1, 0, 2};
  EXPECT_FALSE(steps.Offer(late, Rows(late, 1, 1, {10}, {100}), {}).dropped);
  steps.Offer(a, Rows(a, 1, 1, {10}, {1}), {});
  const StepAccumulator::Offered closing = steps.Offer(b, Rows(b, 1, 1, {10}, {2}), {});
  EXPECT_EQ(SumOf(closing.closed), 3);
  steps.SetApplied();
  EXPECT_TRUE(steps.Offer(end, Rows(end, 2, 1, {10}, {100}), {}).dropped);
}

TEST_F(StepAccumulatorTest, MemoryIsHeldUntilTheStepIsApplied) {
  ByteBudget budget(1000);
  const StepMessage first{0, 1, 0, 1}, second{1, 1, 0, 1};
  steps_.Offer(first, Rows(first, 1, 1, {}, {}), *budget.Reserve(100));
  {
    const StepAccumulator::Offered last = steps_.Offer(second, Rows(second, 1, 1, {}, {}), *budget.Reserve(200));
    ASSERT_TRUE(last.closed.has_value());
    EXPECT_EQ(budget.used(), 300);
  }
  EXPECT_EQ(budget.used(), 0);
}

TEST_F(StepAccumulatorTest, ARestoredStepGoesOn) {
  Offer(1, 0, 0, 8);
  Offer(0, 0, 1, 2);
  StepAccumulator restored(2, 2);
  ASSERT_TRUE(restored.Restore(steps_.Save(), {}).ok());
  EXPECT_THAT(restored.Missing(1), ElementsAre(1));
  const StepMessage end{1, 1, 0, 2};
  EXPECT_EQ(SumOf(restored.Offer(end, Rows(end, 9, 1, {10}, {1}), {}).closed), 11);
  EXPECT_EQ(StepAccumulator(3, 3).Restore(steps_.Save(), {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StepAccumulatorTest, StepsBeginAtTheFirstStep) {
  StepAccumulator steps(1, 1, /*first_step=*/100);
  EXPECT_TRUE(steps.MayPull(100));
  EXPECT_FALSE(steps.MayPull(101));
  const StepMessage before{0, 1, 99, 1}, first{0, 1, 100, 1};
  EXPECT_TRUE(steps.CheckStep(99).ok());
  EXPECT_TRUE(steps.Offer(before, Rows(before, 1, 1, {10}, {1}), {}).dropped);
  EXPECT_EQ(steps.CheckStep(101).message(),
            "got rows for step 101, want at most step 100, whose update is not done; a table that is declared after "
            "training began needs its first_step");
  EXPECT_TRUE(steps.Offer(first, Rows(first, 2, 1, {10}, {1}), {}).closed.has_value());
  steps.SetApplied();
  EXPECT_TRUE(steps.CheckStep(101).ok());
  EXPECT_EQ(steps.CheckStep(102).message(), "got rows for step 102, want at most step 101, whose update is not done");
}

TEST_F(StepAccumulatorTest, CatchesUpWithTheUpdatesThatAWorkerHasSeen) {
  Offer(0, 0, 1, 2);
  Offer(1, 0, 0, 100);
  const StepAccumulator::CaughtUp caught_up = steps_.CatchUp(0, /*seen=*/5, /*ended=*/5);
  EXPECT_EQ(caught_up.lost, 4) << "step 0 was not lost";
  ASSERT_TRUE(caught_up.closed.has_value());
  EXPECT_EQ(SumOf(caught_up.closed), 2) << "the step that is incomplete is not used";
  EXPECT_EQ(caught_up.closed->examples, 1);
  steps_.SetApplied();
  EXPECT_TRUE(steps_.MayPull(5));
  EXPECT_TRUE(Offer(1, 0, 2, 100).dropped);
  EXPECT_THAT(steps_.Missing(6), ElementsAre(0, 1));
  EXPECT_FALSE(Offer(0, 5, 1, 1).closed.has_value());
  EXPECT_EQ(SumOf(Offer(1, 5, 1, 2).closed), 3);
}

TEST_F(StepAccumulatorTest, CatchesUpWithTheStepThatAWorkerHasEnded) {
  EXPECT_EQ(steps_.CatchUp(0, 0, /*ended=*/4).lost, 3) << "step 3 was accepted after the update of step 2";
  EXPECT_THAT(steps_.Missing(4), ElementsAre(1));
  const StepAccumulator::CaughtUp other = steps_.CatchUp(1, 0, 4);
  EXPECT_EQ(other.lost, 1);
  EXPECT_FALSE(other.closed.has_value());
  steps_.SetApplied();
  EXPECT_TRUE(steps_.MayPull(4));
}

TEST_F(StepAccumulatorTest, WhatWasNotLostOfAnEndedStepCounts) {
  Offer(0, 0, 2, 4);
  Offer(1, 0, 1, 2);
  // The other message was lost with the end of the log.
  const StepAccumulator::CaughtUp caught_up = steps_.CatchUp(0, 0, 1);
  EXPECT_EQ(caught_up.lost, 0);
  EXPECT_EQ(SumOf(caught_up.closed), 6);
}

TEST_F(StepAccumulatorTest, AReportOfWhatIsKnownChangesNothing) {
  Offer(0, 0, 1, 2);
  EXPECT_EQ(steps_.CatchUp(0, 0, 1).lost, 0);
  EXPECT_EQ(steps_.CatchUp(1, 0, 0).lost, 0);
  EXPECT_THAT(steps_.Missing(1), ElementsAre(1));
  EXPECT_EQ(SumOf(Offer(1, 0, 1, 1).closed), 3);
}

TEST_F(StepAccumulatorTest, SkipsALimitedNumberOfSteps) {
  EXPECT_EQ(steps_.CatchUp(0, ~uint64_t{0}, ~uint64_t{0}).lost, StepAccumulator::kMostLost);
}

// The sums of a step by their definition.
std::map<uint64_t, std::vector<double>> NaiveSums(const std::vector<BufferedRows>& messages, uint32_t dim) {
  std::map<uint64_t, std::vector<double>> sums;
  for (const BufferedRows& rows : messages) {
    for (size_t at = 0; at < rows.hashes.size(); ++at) {
      std::vector<double>& sum = sums[rows.hashes[at]];
      sum.resize(dim);
      for (uint32_t k = 0; k < dim; ++k) sum[k] += double{1} * rows.examples * rows.gradients.values()[at * dim + k];
    }
  }
  return sums;
}

TEST_F(StepAccumulatorTest, TheOrderOfArrivalChangesNoBit) {
  constexpr uint32_t kWorkers = 4, kDim = 3;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 50; ++round) {
    std::vector<std::pair<StepMessage, BufferedRows>> messages;
    std::vector<BufferedRows> all;
    uint64_t examples = 0;
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      const uint32_t count = 1 + random() % 3, weight = 1 + random() % 8;
      examples += weight;
      for (uint32_t i = 0; i < count; ++i) {
        std::vector<uint64_t> hashes;
        std::vector<float> gradients;
        for (uint64_t hash = 0; hash < 30; ++hash) {
          if (random() % 3 > 0) continue;
          hashes.push_back(hash);
          for (uint32_t k = 0; k < kDim; ++k) gradients.push_back(normal(random));
        }
        const StepMessage place{worker, 1, 0, i + 1 == count ? count : 0};
        messages.emplace_back(place, Rows(place, i + 1, weight, hashes, gradients));
        all.push_back(messages.back().second);
      }
    }
    std::optional<MergedRows> first;
    for (int order = 0; order < 5; ++order) {
      std::shuffle(messages.begin(), messages.end(), random);
      StepAccumulator steps(kWorkers, kWorkers);
      std::optional<StepAccumulator::Closed> closed;
      for (const auto& [place, rows] : messages) {
        ASSERT_FALSE(closed.has_value());
        closed = steps.Offer(place, rows, {}).closed;
      }
      ASSERT_TRUE(closed.has_value());
      EXPECT_EQ(closed->examples, examples);
      MergedRows merged = closed->Merge(kDim);
      if (!first.has_value()) first = merged;
      EXPECT_EQ(merged.hashes, first->hashes);
      ASSERT_EQ(merged.gradients.size(), first->gradients.size());
      EXPECT_EQ(std::memcmp(merged.gradients.values().data(), first->gradients.values().data(),
                            merged.gradients.size() * sizeof(float)),
                0);
    }
    const std::map<uint64_t, std::vector<double>> sums = NaiveSums(all, kDim);
    ASSERT_EQ(first->hashes.size(), sums.size());
    for (size_t row = 0; row < first->hashes.size(); ++row) {
      for (uint32_t k = 0; k < kDim; ++k) {
        EXPECT_NEAR(first->gradients.values()[row * kDim + k], sums.at(first->hashes[row])[k], 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace ballast
