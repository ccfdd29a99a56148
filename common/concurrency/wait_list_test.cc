// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/wait_list.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

class WaitListTest : public testing::Test {
 protected:
  WaitList::Ticket Add(int arrivals, absl::Duration wait) {
    return waits_.Add(
        clock_.Now() + wait,
        [this, arrivals](WaitList::Ticket, WaitList::Cause cause) mutable {
          causes_.push_back(cause);
          return --arrivals == 0;
        },
        [] { return "waits for worker 1"; }, [this](absl::Status status) { ended_.push_back(status); });
  }

  ManualClock clock_;
  std::vector<absl::Status> ended_;
  std::vector<WaitList::Cause> causes_;
  WaitList waits_{&clock_};
};

TEST_F(WaitListTest, EndsWithTheArrivalThatWasAllItWaitedFor) {
  const WaitList::Ticket ticket = Add(2, absl::Hours(1));
  waits_.CountDown(ticket);
  EXPECT_TRUE(ended_.empty());
  waits_.CountDown(ticket);
  EXPECT_THAT(ended_, ElementsAre(absl::OkStatus()));
  EXPECT_EQ(waits_.size(), 0);
}

TEST_F(WaitListTest, EndsAtItsDeadlineAndSaysWhomItWaitedFor) {
  const WaitList::Ticket ticket = Add(1, absl::Hours(1));
  clock_.Advance(absl::Minutes(59));
  waits_.Sweep();
  EXPECT_TRUE(ended_.empty());
  clock_.Advance(absl::Minutes(1));
  waits_.Sweep();
  ASSERT_EQ(ended_.size(), 1);
  EXPECT_EQ(ended_[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ended_[0].message(), "waits for worker 1");
  waits_.CountDown(ticket);
  EXPECT_EQ(ended_.size(), 1);
}

TEST_F(WaitListTest, EndAllEndsEveryWaitOnce) {
  Add(1, absl::Hours(1));
  const WaitList::Ticket ticket = Add(1, absl::Hours(2));
  waits_.EndAll(absl::UnavailableError("drains"));
  waits_.End(ticket, absl::OkStatus());
  EXPECT_THAT(ended_, ElementsAre(absl::UnavailableError("drains"), absl::UnavailableError("drains")));
}

TEST_F(WaitListTest, TellsWhoseArrivalItWas) {
  const WaitList::Ticket ticket = Add(2, absl::Hours(1));
  waits_.CountDown(ticket);
  waits_.CountDown(ticket, 3);
  EXPECT_THAT(causes_, ElementsAre(std::nullopt, WaitList::Cause(3)));
}

// Counts the looks of other threads.
class WatchedClock : public Clock {
 public:
  absl::Time Now() const override {
    if (std::this_thread::get_id() != test_) ++looks_;
    return absl::UnixEpoch();
  }
  int looks() const { return looks_; }

 private:
  const std::thread::id test_ = std::this_thread::get_id();
  mutable std::atomic<int> looks_{0};
};

TEST(WaitListThreadTest, SleepsWhileWaitsComeAndGo) {
  WatchedClock clock;
  WaitList waits(&clock);
  for (int i = 0; i < 20; ++i) {
    const WaitList::Ticket ticket = waits.Add(
        clock.Now() + absl::Hours(1 + i), [](WaitList::Ticket, WaitList::Cause) { return true; },
        [] { return "waits"; }, [](const absl::Status&) {});
    absl::SleepFor(absl::Milliseconds(2));
    waits.CountDown(ticket);
  }
  // One to sleep until the first deadline, and one before it, if the thread slept already when the first wait came.
  EXPECT_LE(clock.looks(), 2);
}

TEST_F(WaitListTest, ShowsTheWaitThatHasLastedLongest) {
  EXPECT_FALSE(waits_.oldest().has_value());
  const WaitList::Ticket first = Add(1, absl::Hours(1));
  clock_.Advance(absl::Minutes(2));
  Add(1, absl::Minutes(1));
  clock_.Advance(absl::Seconds(3));
  ASSERT_TRUE(waits_.oldest().has_value());
  EXPECT_EQ(waits_.oldest()->waited, absl::Seconds(123));
  EXPECT_EQ(waits_.oldest()->reason, "waits for worker 1");
  waits_.CountDown(first);
  EXPECT_EQ(waits_.oldest()->waited, absl::Seconds(3));
}

TEST(WaitRoomThreadTest, SweepsByItselfWithTheRealClock) {
  absl::Notification ended;
  WaitList waits(Clock::Real());
  waits.Add(
      absl::Now() + absl::Milliseconds(5), [](WaitList::Ticket, WaitList::Cause) { return true; },
      [] { return "late"; }, [&](absl::Status) { ended.Notify(); });
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
}

}  // namespace
}  // namespace ballast
