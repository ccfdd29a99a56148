// SPDX-License-Identifier: Apache-2.0
#include "server/shard/push_window.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(PushWindowTest, AnswersADuplicateAsAtFirst) {
  PushWindow window;
  ASSERT_EQ(window.Begin(1, 1)->start, PushWindow::Start::kNew);
  window.Finish(1, 1, {.applied = 3});
  auto again = window.Begin(1, 1);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->start, PushWindow::Start::kDuplicate);
  EXPECT_EQ(again->outcome.applied, 3);
}

TEST(PushWindowTest, SendsARetryAwayWhileTheFirstIsBeingApplied) {
  PushWindow window;
  ASSERT_TRUE(window.Begin(1, 1).ok());
  EXPECT_EQ(window.Begin(1, 1).status().code(), absl::StatusCode::kUnavailable);
}

TEST(PushWindowTest, TakesSequenceNumbersInAnyOrder) {
  PushWindow window;
  for (uint64_t sequence : {5, 2, 9, 1}) {
    EXPECT_EQ(window.Begin(1, sequence)->start, PushWindow::Start::kNew) << sequence;
  }
}

TEST(PushWindowTest, RefusesWhatItNoLongerRemembers) {
  PushWindow window;
  ASSERT_TRUE(window.Begin(1, 1025).ok());
  EXPECT_EQ(window.Begin(1, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(window.Begin(1, 2)->start, PushWindow::Start::kNew);
}

TEST(PushWindowTest, RefusesAnOlderIncarnationAndForgetsItsNumbers) {
  PushWindow window;
  ASSERT_TRUE(window.Begin(1, 1).ok());
  window.Finish(1, 1, {.applied = 1});
  EXPECT_EQ(window.Begin(2, 1)->start, PushWindow::Start::kNew);
  EXPECT_EQ(window.Begin(1, 2).status().code(), absl::StatusCode::kFailedPrecondition);
  window.Finish(1, 1, {.applied = 1});
  EXPECT_EQ(window.Begin(2, 1).status().code(), absl::StatusCode::kUnavailable);
}

TEST(PushWindowTest, RefusesMoreInFlightThanItRemembers) {
  PushWindow window;
  ASSERT_TRUE(window.Begin(1, 1).ok());
  EXPECT_EQ(window.Begin(1, 1025).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ballast
