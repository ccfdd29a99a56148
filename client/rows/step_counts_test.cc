// SPDX-License-Identifier: Apache-2.0
#include "client/rows/step_counts.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StepCountsTest, CountsEachShardAndStep) {
  StepCounts counts;
  counts.Add(5, 0, 1);
  counts.Add(5, 2, 3);
  counts.Add(6, 0, 4);
  counts.Add(5, 0, 1);
  EXPECT_THAT(counts.Take(5), ElementsAre(2, 0, 3));
  EXPECT_THAT(counts.Take(6), ElementsAre(4));
}

TEST(StepCountsTest, AStepThatEndedBeginsAnew) {
  StepCounts counts;
  counts.Add(5, 0, 1);
  counts.Take(5);
  EXPECT_THAT(counts.Take(5), IsEmpty());
}

TEST(StepCountsTest, ARefusedMessageDoesNotCount) {
  StepCounts counts;
  counts.Add(5, 0, 2);
  counts.Remove(5, 0);
  counts.Remove(6, 0);
  EXPECT_THAT(counts.Take(5), ElementsAre(1));
}

TEST(StepCountsTest, StepsThatNeverEndAreForgotten) {
  StepCounts counts;
  for (uint64_t step = 0; step < 1000; ++step) counts.Add(step, 0, 1);
  EXPECT_THAT(counts.Take(935), IsEmpty());
  EXPECT_THAT(counts.Take(936), ElementsAre(1));
}

}  // namespace
}  // namespace ballast
