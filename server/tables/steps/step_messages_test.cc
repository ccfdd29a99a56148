// SPDX-License-Identifier: Apache-2.0
#include "server/tables/steps/step_messages.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(StepMessagesTest, AStepOfOneMessageIsCompleteAtOnce) {
  StepMessages messages;
  EXPECT_TRUE(messages.Add({0, 1, 0, 1}));
  EXPECT_TRUE(messages.Save().empty());
}

TEST(StepMessagesTest, TheLastMessageMayOvertakeTheOthers) {
  StepMessages messages;
  EXPECT_FALSE(messages.Add({0, 1, 5, 3}));
  EXPECT_FALSE(messages.Add({0, 1, 5, 0}));
  EXPECT_TRUE(messages.Add({0, 1, 5, 0}));
}

TEST(StepMessagesTest, StepsAndWorkersAreCountedApart) {
  StepMessages messages;
  EXPECT_FALSE(messages.Add({0, 1, 5, 0}));
  EXPECT_FALSE(messages.Add({0, 1, 6, 0}));
  EXPECT_FALSE(messages.Add({1, 1, 5, 0}));
  EXPECT_TRUE(messages.Add({0, 1, 6, 2}));
  EXPECT_TRUE(messages.Add({1, 1, 5, 2}));
  EXPECT_TRUE(messages.Add({0, 1, 5, 2}));
}

TEST(StepMessagesTest, ANewIncarnationSendsItsStepWhole) {
  StepMessages messages;
  EXPECT_FALSE(messages.Add({0, 1, 5, 0}));
  EXPECT_FALSE(messages.Add({0, 2, 5, 0}));
  EXPECT_TRUE(messages.Add({0, 2, 5, 2}));
}

TEST(StepMessagesTest, AWorkerThatPausedSendsItsStepWhole) {
  StepMessages messages;
  EXPECT_FALSE(messages.Add({0, 1, 5, 0}));
  messages.Forget(0);
  EXPECT_FALSE(messages.Add({0, 1, 5, 2}));
  EXPECT_TRUE(messages.Add({0, 1, 5, 0}));
}

TEST(StepMessagesTest, OnlyEarlierStepsAreForgotten) {
  StepMessages messages;
  for (uint64_t step : {4, 5, 6}) EXPECT_FALSE(messages.Add({0, 1, step, 0}));
  messages.Forget(0, 6);
  EXPECT_FALSE(messages.Add({0, 1, 5, 2}));
  EXPECT_TRUE(messages.Add({0, 1, 6, 2}));
}

TEST(StepMessagesTest, AWorkerThatNeverEndsAStepTakesNoMoreMemory) {
  StepMessages messages;
  for (uint64_t step = 0; step < 1000; ++step) EXPECT_FALSE(messages.Add({0, 1, step, 0}));
  EXPECT_EQ(messages.Save().size(), 64);
  EXPECT_EQ(messages.Save().front().step, 936);
}

TEST(StepMessagesTest, ARestoredCountGoesOn) {
  StepMessages messages;
  EXPECT_FALSE(messages.Add({3, 1, 5, 3}));
  EXPECT_FALSE(messages.Add({3, 1, 5, 0}));
  StepMessages restored;
  restored.Restore(messages.Save());
  EXPECT_TRUE(restored.Add({3, 1, 5, 0}));
}

}  // namespace
}  // namespace ballast
