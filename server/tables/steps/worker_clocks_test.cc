// SPDX-License-Identifier: Apache-2.0
#include "server/tables/steps/worker_clocks.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "common/tensors/tensor_spec_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/policies/slice_policy.h"
#include "server/weights/slice_weights.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(WorkerClocksTest, APullWaitsForWorkersThatAreTooFarBehind) {
  WorkerClocks clocks(2, /*steps_ahead=*/1, /*first_step=*/0);
  clocks.Finish(0, 2);
  EXPECT_TRUE(clocks.MayPull(1));
  EXPECT_FALSE(clocks.MayPull(2));
  EXPECT_THAT(clocks.Missing(2), ElementsAre(1));
  clocks.Finish(1, 1);
  EXPECT_TRUE(clocks.MayPull(2));
  EXPECT_FALSE(clocks.MayPull(3));
  EXPECT_THAT(clocks.Missing(4), ElementsAre(0, 1));
}

TEST(WorkerClocksTest, NoPullWaitsForAWorkerThatPaused) {
  WorkerClocks clocks(2, 0, 0);
  clocks.Finish(0, 5);
  clocks.Pause(1);
  EXPECT_TRUE(clocks.MayPull(5));
  EXPECT_THAT(clocks.Missing(6), ElementsAre(0));
  clocks.Pause(0);
  EXPECT_TRUE(clocks.MayPull(1000));
}

TEST(WorkerClocksTest, AWorkerThatReturnsContinuesFromTheSlowestsClock) {
  WorkerClocks clocks(2, /*steps_ahead=*/1, 0);
  clocks.Pause(1);
  clocks.Finish(0, 10);
  // By its own count it is at step 1 again.
  clocks.Finish(1, 1);
  EXPECT_TRUE(clocks.MayPull(11));
  EXPECT_FALSE(clocks.MayPull(12));
  clocks.Finish(0, 11);
  EXPECT_FALSE(clocks.MayPull(12));
  clocks.Finish(1, 2);
  EXPECT_TRUE(clocks.MayPull(12));
}

TEST(WorkerClocksTest, ClocksBeginAtTheFirstStep) {
  WorkerClocks clocks(2, 2, /*first_step=*/100);
  EXPECT_TRUE(clocks.MayPull(102));
  EXPECT_FALSE(clocks.MayPull(103));
  EXPECT_EQ(clocks.Finish(0, 99), 0) << "the end of an earlier step";
  EXPECT_EQ(clocks.Finish(0, 101), 1);
}

TEST(WorkerClocksTest, OnlyAClockThatIsBehindCatchesUp) {
  WorkerClocks clocks(2, 0, 0);
  clocks.Finish(0, 3);
  EXPECT_EQ(clocks.CatchUp(0, 3), 0);
  EXPECT_EQ(clocks.CatchUp(1, 3), 3);
  EXPECT_TRUE(clocks.MayPull(3));
  EXPECT_EQ(clocks.CatchUp(1, ~uint64_t{0}), 0) << "no worker can be there";
  EXPECT_FALSE(clocks.CheckStep(~uint64_t{0}).ok());
  // A report of what is known does not end a pause.
  clocks.Pause(1);
  clocks.Finish(0, 4);
  EXPECT_EQ(clocks.CatchUp(1, 3), 0);
  EXPECT_TRUE(clocks.MayPull(4));
}

TEST(WorkerClocksTest, RestoredClocksGoOn) {
  WorkerClocks clocks(3, 1, 0);
  clocks.Finish(0, 4);
  clocks.Pause(2);
  WorkerClocks restored(3, 1, 0);
  ASSERT_TRUE(restored.Restore(clocks.Save()).ok());
  EXPECT_THAT(restored.Missing(4), ElementsAre(1));
  EXPECT_EQ(WorkerClocks(2, 1, 0).Restore(clocks.Save()).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(restored.Restore(WorkerClocks::Together(3, 7)).ok());
  EXPECT_TRUE(restored.MayPull(8));
  EXPECT_THAT(restored.Missing(9), ElementsAre(0, 1, 2));
}

// The rule by its definition, for workers that do not pause.
TEST(WorkerClocksTest, WithoutPausesThePullWaitsForTheFewestSteps) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const uint32_t workers = 1 + random() % 5;
    const uint64_t steps_ahead = random() % 4;
    WorkerClocks clocks(workers, steps_ahead, 0);
    std::vector<uint64_t> ended(workers, 0);
    for (int event = 0; event < 60; ++event) {
      const uint32_t worker = random() % workers;
      clocks.Finish(worker, ++ended[worker]);
      const uint64_t fewest = *std::min_element(ended.begin(), ended.end());
      for (uint64_t step = 0; step < 70; ++step) {
        ASSERT_EQ(clocks.MayPull(step), step <= fewest + steps_ahead) << "step " << step;
        std::vector<uint32_t> missing;
        for (uint32_t rank = 0; rank < workers; ++rank) {
          if (ended[rank] + steps_ahead < step) missing.push_back(rank);
        }
        ASSERT_EQ(clocks.Missing(step), missing);
      }
    }
  }
}

// The policy of a slice that gets the same steps, pauses, returns and reports.
TEST(WorkerClocksTest, ClocksChangeLikeThoseOfASlice) {
  const v1::TensorSpec spec = SgdSpec(0, "w", 1);
  const std::unique_ptr<Optimizer> optimizer = *MakeOptimizer(spec.optimizer());
  v1::SliceRange range;
  range.set_elements(1);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const uint32_t workers = 1 + random() % 5;
    v1::ConsistencyPolicy config;
    config.mutable_bounded()->set_steps_ahead(random() % 4);
    const std::unique_ptr<SlicePolicy> slice = *MakeSlicePolicy(config, workers);
    SliceWeights weights(spec, range, optimizer.get());
    WorkerClocks clocks(workers, config.bounded().steps_ahead(), 0);
    std::vector<uint64_t> ended(workers, 0);
    for (int event = 0; event < 200; ++event) {
      const uint32_t worker = random() % workers;
      switch (random() % 8) {
        case 0:
          slice->Pause(worker, weights);
          clocks.Pause(worker);
          // The worker may restart from an earlier step.
          if (random() % 3 == 0) ended[worker] = ended[worker] / 2;
          break;
        case 1: {
          const uint64_t reported = ended[worker] + random() % 3;
          slice->CatchUp(worker, 0, reported, weights);
          clocks.CatchUp(worker, reported);
          break;
        }
        default:
          slice->Offer({.worker = worker, .step = ended[worker]}, 0, Gradient(), weights);
          clocks.Finish(worker, ++ended[worker]);
      }
      const WorkerClocks::State state = clocks.Save();
      const PolicyState want = slice->Save();
      ASSERT_EQ(state.slowest, want.fields.slowest());
      for (uint32_t rank = 0; rank < workers; ++rank) {
        ASSERT_EQ(state.workers[rank].paused, want.fields.clocks(rank).paused());
        ASSERT_EQ(state.workers[rank].finished, want.fields.clocks(rank).finished());
        ASSERT_EQ(state.workers[rank].clock, want.fields.clocks(rank).clock());
      }
      for (uint64_t step = state.slowest; step < state.slowest + 8; ++step) {
        ASSERT_EQ(clocks.MayPull(step), slice->MayPull({step, std::nullopt}, weights));
        ASSERT_EQ(clocks.Missing(step), slice->Missing({step, std::nullopt}));
      }
    }
  }
}

}  // namespace
}  // namespace ballast
