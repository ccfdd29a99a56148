// SPDX-License-Identifier: Apache-2.0
#include "client/rows/ended_steps.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(EndedStepsTest, AStepHasEndedOnceAllOfItsMessagesAreAcknowledged) {
  EndedSteps steps;
  steps.Send(4, 1, 2);
  steps.End(4, 1);
  EXPECT_FALSE(steps.Finish(4, 1, true));
  EXPECT_EQ(steps.count(1), 0);
  EXPECT_TRUE(steps.Finish(4, 1, true));
  EXPECT_EQ(steps.count(1), 5);
  EXPECT_EQ(steps.count(0), 0);
}

TEST(EndedStepsTest, AStepDoesNotEndBeforeItsLastMessageIsSent) {
  EndedSteps steps;
  steps.Send(4, 0, 1);
  EXPECT_FALSE(steps.Finish(4, 0, true));
  steps.Send(4, 0, 1);
  steps.End(4, 0);
  EXPECT_TRUE(steps.Finish(4, 0, true));
  EXPECT_EQ(steps.count(0), 5);
}

TEST(EndedStepsTest, AStepDoesNotEndBeforeAnEarlierOne) {
  EndedSteps steps;
  for (uint64_t step : {4, 5}) {
    steps.Send(step, 0, 1);
    steps.End(step, 0);
  }
  EXPECT_FALSE(steps.Finish(5, 0, true));
  EXPECT_EQ(steps.count(0), 0);
  EXPECT_TRUE(steps.Finish(4, 0, true));
  EXPECT_EQ(steps.count(0), 6);
}

TEST(EndedStepsTest, AStepWithARefusedMessageHasNotEnded) {
  EndedSteps steps;
  steps.Send(4, 0, 1);
  steps.End(4, 0);
  EXPECT_FALSE(steps.Finish(4, 0, false));
  EXPECT_EQ(steps.count(0), 0);
  steps.Send(4, 0, 1);
  steps.End(4, 0);
  EXPECT_TRUE(steps.Finish(4, 0, true));
  EXPECT_EQ(steps.count(0), 5);
}

}  // namespace
}  // namespace ballast
