// SPDX-License-Identifier: Apache-2.0
#include "client/job_condition_tracker.h"

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr absl::Duration kTtl = absl::Seconds(5);
const absl::Time kBegin = absl::FromUnixSeconds(1000);

v1::HeartbeatResponse Response(v1::JobState state, const std::string& reason = "") {
  v1::HeartbeatResponse response;
  response.set_state(state);
  response.set_reason(reason);
  return response;
}

JobConditionTracker Begun(absl::Duration return_timeout = absl::ZeroDuration()) {
  JobConditionTracker tracker("coordinator at host:1");
  tracker.set_return_timeout(return_timeout);
  tracker.Begin(kTtl, kBegin);
  return tracker;
}

TEST(JobConditionTrackerTest, ResponseBringsTheStateItsReasonAndTheFailure) {
  JobConditionTracker tracker = Begun();
  EXPECT_EQ(tracker.condition().state, v1::JOB_STATE_GATHERING);
  EXPECT_FALSE(tracker.OnHeartbeat(Response(v1::JOB_STATE_GATHERING), kBegin));
  EXPECT_TRUE(tracker.OnHeartbeat(Response(v1::JOB_STATE_RUNNING), kBegin));
  EXPECT_FALSE(tracker.OnHeartbeat(Response(v1::JOB_STATE_RUNNING), kBegin)) << "the state is the same";
  v1::HeartbeatResponse failed = Response(v1::JOB_STATE_FAILED, "worker 1: killed");
  failed.mutable_failure()->mutable_member()->set_rank(1);
  EXPECT_TRUE(tracker.OnHeartbeat(failed, kBegin));
  EXPECT_EQ(tracker.condition().state, v1::JOB_STATE_FAILED);
  EXPECT_EQ(tracker.condition().reason, "worker 1: killed");
  EXPECT_EQ(tracker.condition().failure.member().rank(), 1);
  EXPECT_FALSE(tracker.condition().lost);
  EXPECT_FALSE(tracker.condition().before_start);
}

TEST(JobConditionTrackerTest, RefusedHeartbeatFailsTheJobAtOnce) {
  for (v1::ErrorReason reason : {v1::ERROR_REASON_MEMBER_LOST, v1::ERROR_REASON_NOT_SERVING}) {
    JobConditionTracker tracker = Begun(absl::Hours(1));
    EXPECT_TRUE(tracker.OnHeartbeat(WithReason(reason, absl::FailedPreconditionError("no member")), kBegin));
    EXPECT_EQ(tracker.condition().state, v1::JOB_STATE_FAILED);
    EXPECT_EQ(tracker.condition().reason, "no member");
    EXPECT_EQ(tracker.condition().lost, reason == v1::ERROR_REASON_MEMBER_LOST);
  }
}

TEST(JobConditionTrackerTest, CoordinatorIsLostAfterTheTimeoutThatItsErrorAndTheJobGiveIt) {
  const struct {
    absl::Status error;
    absl::Duration return_timeout, timeout;
  } kCases[] = {
      // Unreachable: the member's time to live.
      {absl::UnavailableError("x"), absl::ZeroDuration(), kTtl},
      {absl::UnavailableError("x"), absl::Seconds(3), kTtl},
      {absl::UnavailableError("x"), absl::Seconds(20), absl::Seconds(20)},
      // Busy: 60 s.
      {absl::DeadlineExceededError("x"), absl::ZeroDuration(), absl::Seconds(60)},
      {absl::ResourceExhaustedError("x"), absl::Seconds(20), absl::Seconds(60)},
      {absl::DeadlineExceededError("x"), absl::Seconds(90), absl::Seconds(90)},
  };
  for (const auto& [error, return_timeout, timeout] : kCases) {
    SCOPED_TRACE(absl::StrCat(error.ToString(), " ", absl::FormatDuration(return_timeout)));
    JobConditionTracker tracker = Begun(return_timeout);
    EXPECT_EQ(tracker.return_timeout(), return_timeout);
    // The time counts from the last response.
    const absl::Time last = kBegin + absl::Seconds(7);
    ASSERT_TRUE(tracker.OnHeartbeat(Response(v1::JOB_STATE_RUNNING), last));
    EXPECT_FALSE(tracker.OnHeartbeat(error, last + timeout - absl::Milliseconds(1)));
    EXPECT_EQ(tracker.condition().state, v1::JOB_STATE_RUNNING);
    EXPECT_TRUE(tracker.OnHeartbeat(error, last + timeout));
    EXPECT_EQ(tracker.condition().state, v1::JOB_STATE_FAILED);
    EXPECT_EQ(tracker.condition().reason,
              absl::StrCat("coordinator at host:1 has not responded for ", absl::FormatDuration(timeout), ": x"));
    EXPECT_FALSE(tracker.condition().lost);
    EXPECT_FALSE(tracker.condition().before_start);
  }
}

TEST(JobConditionTrackerTest, JobWhoseCoordinatorIsLostWhileGatheringHasNotStarted) {
  JobConditionTracker tracker = Begun();
  EXPECT_FALSE(tracker.OnHeartbeat(absl::UnavailableError("x"), kBegin + kTtl / 2));
  EXPECT_FALSE(tracker.condition().before_start);
  EXPECT_TRUE(tracker.OnHeartbeat(absl::UnavailableError("x"), kBegin + kTtl + absl::Microseconds(1500)));
  EXPECT_TRUE(tracker.condition().before_start);
  EXPECT_EQ(tracker.condition().reason, "coordinator at host:1 has not responded for 5.001s: x");
}

}  // namespace
}  // namespace ballast
