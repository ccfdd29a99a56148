// SPDX-License-Identifier: Apache-2.0
#include "worker/training/gradient_accumulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GradientAccumulatorTest, IsTheMeanOverAllExamples) {
  GradientAccumulator accumulator;
  accumulator.Add({4, -8}, 1);
  accumulator.Add({0, 4}, 3);
  EXPECT_THAT(accumulator.TakeMean(), ElementsAre(1, 1));
}

TEST(GradientAccumulatorTest, BeginsAnewAfterItWasTaken) {
  GradientAccumulator accumulator;
  accumulator.Add({4, 4}, 2);
  EXPECT_THAT(accumulator.TakeMean(), ElementsAre(4, 4));
  EXPECT_THAT(accumulator.TakeMean(), IsEmpty());
  accumulator.Add({1, 2}, 2);
  EXPECT_THAT(accumulator.TakeMean(), ElementsAre(1, 2));
}

TEST(GradientAccumulatorTest, StepsAgainstTheMeanGradient) {
  GradientAccumulator accumulator;
  float weights[] = {10, 20};
  accumulator.Add({4, -4}, 1);
  accumulator.Add({0, -4}, 1);
  accumulator.Step(0.5, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(9, 22));
}

TEST(GradientAccumulatorTest, ChangeIsWhatAllStepsSubtracted) {
  GradientAccumulator accumulator;
  float weights[] = {10, 20};
  accumulator.Add({2, -2}, 1);
  accumulator.Step(0.5, absl::MakeSpan(weights));
  accumulator.Add({4, 8}, 7);
  accumulator.Step(0.25, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(8, 19));
  EXPECT_THAT(accumulator.TakeChange(weights), ElementsAre(2, 1));
}

TEST(GradientAccumulatorTest, NextChangeCountsFromTheWeightsThatWerePulled) {
  GradientAccumulator accumulator;
  float weights[] = {10};
  accumulator.Add({2}, 1);
  accumulator.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(accumulator.TakeChange(weights), ElementsAre(2));
  weights[0] = 100;
  accumulator.Add({3}, 1);
  accumulator.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(accumulator.TakeChange(weights), ElementsAre(3));
}

TEST(GradientAccumulatorTest, WithoutAnExampleNothingChanges) {
  GradientAccumulator accumulator;
  float weights[] = {10};
  accumulator.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(10));
  EXPECT_THAT(accumulator.TakeChange(weights), IsEmpty());
}

}  // namespace
}  // namespace ballast
