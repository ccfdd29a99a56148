// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/eager_wait.h"

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class EagerWaitTest : public testing::Test {
 protected:
  // Waits for what is there at the look with that number, or after the sleep.
  void Wait(int found_at, absl::Duration sleep = absl::ZeroDuration(), bool may_look = true) {
    looks_ = sleeps_ = 0;
    wait_.Wait(
        may_look, [&] { return ++looks_ == found_at; },
        [&] {
          ++sleeps_;
          absl::SleepFor(sleep);
        });
  }

  EagerWait wait_;
  int looks_ = 0;
  int sleeps_ = 0;
};

constexpr absl::Duration kLong = absl::Milliseconds(1);

TEST_F(EagerWaitTest, SleepsAtFirst) {
  Wait(/*found_at=*/1);
  EXPECT_EQ(looks_, 0);
  EXPECT_EQ(sleeps_, 1);
}

// A loaded machine may make any wait long, so one of many must be short.
TEST_F(EagerWaitTest, LooksAfterAShortWait) {
  for (int i = 0; i < 1000 && looks_ == 0; ++i) Wait(/*found_at=*/1);
  EXPECT_EQ(looks_, 1);
  EXPECT_EQ(sleeps_, 0);
}

TEST_F(EagerWaitTest, SleepsAfterALookInVain) {
  for (int i = 0; i < 1000 && looks_ == 0; ++i) Wait(/*found_at=*/-1);
  EXPECT_GE(looks_, 1);
  EXPECT_EQ(sleeps_, 1);
}

TEST_F(EagerWaitTest, DoesNotLookAfterALongWait) {
  for (int i = 0; i < 10; ++i) {
    Wait(/*found_at=*/-1, kLong);
    Wait(/*found_at=*/1, kLong);
    EXPECT_EQ(looks_, 0);
    EXPECT_EQ(sleeps_, 1);
  }
}

TEST_F(EagerWaitTest, DoesNotLookWhenItMayNot) {
  for (int i = 0; i < 100; ++i) {
    Wait(/*found_at=*/1, absl::ZeroDuration(), /*may_look=*/false);
    EXPECT_EQ(looks_, 0);
    EXPECT_EQ(sleeps_, 1);
  }
}

}  // namespace
}  // namespace ballast
