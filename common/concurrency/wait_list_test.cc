// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/wait_list.h"

#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

class WaitListTest : public testing::Test {
 protected:
  WaitList::Ticket Add(int arrivals, absl::Duration wait) {
    return waits_.Add(
        clock_.Now() + wait, [arrivals](WaitList::Ticket) mutable { return --arrivals == 0; },
        [] { return "waits for worker 1"; }, [this](absl::Status status) { ended_.push_back(status); });
  }

  ManualClock clock_;
  std::vector<absl::Status> ended_;
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

TEST(WaitRoomThreadTest, SweepsByItselfWithTheRealClock) {
  absl::Notification ended;
  WaitList waits(Clock::Real());
  waits.Add(
      absl::Now() + absl::Milliseconds(5), [](WaitList::Ticket) { return true; }, [] { return "late"; },
      [&](absl::Status) { ended.Notify(); });
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
}

}  // namespace
}  // namespace ballast
