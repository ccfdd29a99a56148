// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/call_attempt.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(CallAttemptTest, CancelEndsItOnce) {
  CallAttempt attempt;
  int cancels = 0;
  attempt.OnCancel([&] { ++cancels; });
  EXPECT_EQ(cancels, 0);
  attempt.Cancel();
  attempt.Cancel();
  EXPECT_EQ(cancels, 1);
}

TEST(CallAttemptTest, ACancelThatCameFirstCounts) {
  CallAttempt attempt;
  attempt.Cancel();
  int cancels = 0;
  attempt.OnCancel([&] { ++cancels; });
  EXPECT_EQ(cancels, 1);
}

}  // namespace
}  // namespace ballast
