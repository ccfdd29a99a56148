// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/member_loop.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr absl::Duration kLong = absl::Minutes(1);

// Retries UNAVAILABLE for 3 s and DEADLINE_EXCEEDED for 5 s, in attempts of 1 s that fail with the given errors, the
// last of them repeatedly. Returns the final status and the number of attempts.
std::pair<absl::Status, int> CallThatEnds(std::vector<absl::Status> errors) {
  ManualClock clock;
  MemberLoop loop(&clock);
  size_t attempts = 0;
  const absl::Status status = loop.Call(
      [&](grpc::ClientContext*) {
        clock.Advance(absl::Seconds(1));
        return errors[std::min(attempts++, errors.size() - 1)];
      },
      absl::ZeroDuration(),
      [](const absl::Status& error) {
        if (absl::IsUnavailable(error)) return absl::UnixEpoch() + absl::Seconds(3);
        if (absl::IsDeadlineExceeded(error)) return absl::UnixEpoch() + absl::Seconds(5);
        return absl::InfinitePast();
      });
  return {status, attempts};
}

TEST(MemberLoopTest, CallIsRetriedUntilTheCoordinatorIsLostOrRefusesIt) {
  const absl::Status gone = absl::UnavailableError("gone"), busy = absl::DeadlineExceededError("busy"),
                     refused = absl::PermissionDeniedError("refused");
  const struct {
    std::vector<absl::Status> errors;
    absl::Status status;
    int attempts;
  } kCases[] = {
      {{absl::OkStatus()}, absl::OkStatus(), 1},
      {{gone, busy, absl::OkStatus()}, absl::OkStatus(), 3},
      {{refused}, refused, 1},
      {{gone, refused}, refused, 2},
      {{gone}, gone, 3},
      {{busy}, busy, 5},
      {{busy, busy, busy, busy, gone}, gone, 5},
  };
  for (const auto& [errors, status, attempts] : kCases) {
    EXPECT_THAT(CallThatEnds(errors), testing::Pair(status, attempts));
  }
}

TEST(MemberLoopTest, OnlyErrorsWithoutAResponseAreUnresponsive) {
  EXPECT_TRUE(IsUnresponsive(absl::UnavailableError("x")));
  EXPECT_TRUE(IsUnresponsive(absl::DeadlineExceededError("x")));
  EXPECT_TRUE(IsUnresponsive(absl::ResourceExhaustedError("x")));
  EXPECT_FALSE(IsUnresponsive(absl::FailedPreconditionError("x")));
  EXPECT_FALSE(IsUnresponsive(absl::OkStatus()));
}

TEST(MemberLoopTest, CallThatAStoppingServerCancelsIsUnresponsive) {
  EXPECT_EQ(FromAttempt({grpc::StatusCode::CANCELLED, "bye"}, "heartbeat").message(),
            "heartbeat: the server ended the call: bye");
  EXPECT_TRUE(IsUnresponsive(FromAttempt({grpc::StatusCode::CANCELLED, "bye"})));
  EXPECT_FALSE(IsUnresponsive(FromAttempt({grpc::StatusCode::NOT_FOUND, "no such job"})));
}

TEST(MemberLoopTest, ResponseShortensTheIntervalFromTheJoin) {
  v1::JoinResponse joined;
  v1::HeartbeatResponse last;
  EXPECT_EQ(HeartbeatInterval(joined, last), absl::Milliseconds(1));
  joined.set_heartbeat_interval_ms(600);
  EXPECT_EQ(HeartbeatInterval(joined, last), absl::Milliseconds(600));
  last.set_interval_ms(10);
  EXPECT_EQ(HeartbeatInterval(joined, last), absl::Milliseconds(10));
}

TEST(MemberLoopTest, StepsUntilOneReturnsNothing) {
  absl::Notification ended;
  int steps = 0;
  MemberLoop loop;
  loop.Start([&]() -> std::optional<absl::Duration> {
    if (++steps < 3) return absl::ZeroDuration();
    ended.Notify();
    return std::nullopt;
  });
  ASSERT_TRUE(ended.WaitForNotificationWithTimeout(kLong));
  loop.HeartbeatNow();
  loop.Stop();
  EXPECT_EQ(steps, 3);
}

TEST(MemberLoopTest, HeartbeatNowEndsThePauseEvenIfItComesDuringAStep) {
  absl::Notification first, called, second;
  MemberLoop loop;
  loop.Start([&] {
    if (first.HasBeenNotified()) {
      second.Notify();
      return absl::InfiniteDuration();
    }
    first.Notify();
    called.WaitForNotification();
    return absl::Hours(1);
  });
  ASSERT_TRUE(first.WaitForNotificationWithTimeout(kLong));
  loop.HeartbeatNow();
  called.Notify();
  EXPECT_TRUE(second.WaitForNotificationWithTimeout(kLong));
}

TEST(MemberLoopTest, StopEndsThePauseBetweenAttemptsAndLaterCalls) {
  absl::Notification failed;
  absl::Status status;
  MemberLoop loop;
  const auto call = [&] {
    return loop.Call(
        [&](grpc::ClientContext*) {
          failed.Notify();
          return absl::UnavailableError("gone");
        },
        absl::Hours(1), [](const absl::Status&) { return absl::InfiniteFuture(); });
  };
  loop.Start([&]() -> std::optional<absl::Duration> {
    status = call();
    return std::nullopt;
  });
  ASSERT_TRUE(failed.WaitForNotificationWithTimeout(kLong));
  loop.Stop();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(absl::IsCancelled(call()));
  EXPECT_TRUE(loop.stopping());
}

}  // namespace
}  // namespace ballast
