// SPDX-License-Identifier: Apache-2.0
#include "worker/training/contribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ContributionTest, IsTheMeanOverAllExamples) {
  Contribution contribution;
  contribution.Add({4, -8}, 1);
  contribution.Add({0, 4}, 3);
  EXPECT_THAT(contribution.TakeMean(), ElementsAre(1, 1));
}

TEST(ContributionTest, BeginsAnewAfterItWasTaken) {
  Contribution contribution;
  contribution.Add({4, 4}, 2);
  EXPECT_THAT(contribution.TakeMean(), ElementsAre(4, 4));
  EXPECT_THAT(contribution.TakeMean(), IsEmpty());
  contribution.Add({1, 2}, 2);
  EXPECT_THAT(contribution.TakeMean(), ElementsAre(1, 2));
}

TEST(ContributionTest, StepsAgainstTheMeanGradient) {
  Contribution contribution;
  float weights[] = {10, 20};
  contribution.Add({4, -4}, 1);
  contribution.Add({0, -4}, 1);
  contribution.Step(0.5, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(9, 22));
}

TEST(ContributionTest, ChangeIsWhatAllStepsSubtracted) {
  Contribution contribution;
  float weights[] = {10, 20};
  contribution.Add({2, -2}, 1);
  contribution.Step(0.5, absl::MakeSpan(weights));
  contribution.Add({4, 8}, 7);
  contribution.Step(0.25, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(8, 19));
  EXPECT_THAT(contribution.TakeChange(weights), ElementsAre(2, 1));
}

TEST(ContributionTest, NextChangeCountsFromTheWeightsThatWerePulled) {
  Contribution contribution;
  float weights[] = {10};
  contribution.Add({2}, 1);
  contribution.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(contribution.TakeChange(weights), ElementsAre(2));
  weights[0] = 100;
  contribution.Add({3}, 1);
  contribution.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(contribution.TakeChange(weights), ElementsAre(3));
}

TEST(ContributionTest, WithoutAnExampleNothingChanges) {
  Contribution contribution;
  float weights[] = {10};
  contribution.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(10));
  EXPECT_THAT(contribution.TakeChange(weights), IsEmpty());
}

}  // namespace
}  // namespace ballast
