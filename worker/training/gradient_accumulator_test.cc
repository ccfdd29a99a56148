// SPDX-License-Identifier: Apache-2.0
#include "worker/training/gradient_accumulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GradientAccumulatorTest, IsTheMeanOverAllExamples) {
  GradientAccumulator gathered;
  gathered.Add({4, -8}, 1);
  gathered.Add({0, 4}, 3);
  EXPECT_THAT(gathered.TakeMean(), ElementsAre(1, 1));
}

TEST(GradientAccumulatorTest, BeginsAnewAfterItWasTaken) {
  GradientAccumulator gathered;
  gathered.Add({4, 4}, 2);
  EXPECT_THAT(gathered.TakeMean(), ElementsAre(4, 4));
  EXPECT_THAT(gathered.TakeMean(), IsEmpty());
  gathered.Add({1, 2}, 2);
  EXPECT_THAT(gathered.TakeMean(), ElementsAre(1, 2));
}

TEST(GradientAccumulatorTest, StepsAgainstTheMeanGradient) {
  GradientAccumulator gathered;
  float weights[] = {10, 20};
  gathered.Add({4, -4}, 1);
  gathered.Add({0, -4}, 1);
  gathered.Step(0.5, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(9, 22));
}

TEST(GradientAccumulatorTest, ChangeIsWhatAllStepsSubtracted) {
  GradientAccumulator gathered;
  float weights[] = {10, 20};
  gathered.Add({2, -2}, 1);
  gathered.Step(0.5, absl::MakeSpan(weights));
  gathered.Add({4, 8}, 7);
  gathered.Step(0.25, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(8, 19));
  EXPECT_THAT(gathered.TakeChange(weights), ElementsAre(2, 1));
}

TEST(GradientAccumulatorTest, NextChangeCountsFromTheWeightsThatWerePulled) {
  GradientAccumulator gathered;
  float weights[] = {10};
  gathered.Add({2}, 1);
  gathered.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(gathered.TakeChange(weights), ElementsAre(2));
  weights[0] = 100;
  gathered.Add({3}, 1);
  gathered.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(gathered.TakeChange(weights), ElementsAre(3));
}

TEST(GradientAccumulatorTest, WithoutAnExampleNothingChanges) {
  GradientAccumulator gathered;
  float weights[] = {10};
  gathered.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(10));
  EXPECT_THAT(gathered.TakeChange(weights), IsEmpty());
}

}  // namespace
}  // namespace ballast
