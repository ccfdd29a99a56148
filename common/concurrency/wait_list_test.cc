// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/wait_list.h"

#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class WaitRoomTest : public testing::Test {
 protected:
  WaitRoom::Ticket Enter(int arrivals, absl::Duration wait) {
    return room_.Enter(
        clock_.Now() + wait, [arrivals](WaitRoom::Ticket) mutable { return --arrivals == 0; },
        [] { return "waits for worker 1"; }, [this](absl::Status status) { ended_.push_back(status); });
  }

  ManualClock clock_;
  std::vector<absl::Status> ended_;
  WaitRoom room_{&clock_};
};

TEST_F(WaitRoomTest, EndsWithTheArrivalThatWasAllItWaitedFor) {
  const WaitRoom::Ticket ticket = Enter(2, absl::Hours(1));
  room_.Arrive(ticket);
  EXPECT_TRUE(ended_.empty());
  room_.Arrive(ticket);
  ASSERT_EQ(ended_.size(), 1);
  EXPECT_TRUE(ended_[0].ok());
  EXPECT_EQ(room_.size(), 0);
}

TEST_F(WaitRoomTest, EndsAtItsDeadlineAndSaysWhomItWaitedFor) {
  const WaitRoom::Ticket ticket = Enter(1, absl::Hours(1));
  clock_.Advance(absl::Minutes(59));
  room_.Sweep();
  EXPECT_TRUE(ended_.empty());
  clock_.Advance(absl::Minutes(1));
  room_.Sweep();
  ASSERT_EQ(ended_.size(), 1);
  EXPECT_EQ(ended_[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ended_[0].message(), "waits for worker 1");
  room_.Arrive(ticket);
  EXPECT_EQ(ended_.size(), 1);
}

TEST_F(WaitRoomTest, EndAllEndsEveryWaitOnce) {
  Enter(1, absl::Hours(1));
  const WaitRoom::Ticket ticket = Enter(1, absl::Hours(2));
  room_.EndAll(absl::UnavailableError("drains"));
  room_.End(ticket, absl::OkStatus());
  ASSERT_EQ(ended_.size(), 2);
  EXPECT_EQ(ended_[1], absl::UnavailableError("drains"));
}

TEST(WaitRoomThreadTest, SweepsByItselfWithTheRealClock) {
  absl::Notification ended;
  WaitRoom room(Clock::Real());
  room.Enter(
      absl::Now() + absl::Milliseconds(5), [](WaitRoom::Ticket) { return true; }, [] { return "late"; },
      [&](absl::Status) { ended.Notify(); });
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
}

}  // namespace
}  // namespace ballast
