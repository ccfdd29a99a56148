// SPDX-License-Identifier: Apache-2.0
#include "client/job_condition_tracker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/rpc/member_loop.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// A coordinator whose connection stands is alive but busy; servers use the same timeout.
constexpr absl::Duration kBusyTimeout = absl::Seconds(60);

}  // namespace

void JobConditionTracker::Begin(absl::Duration member_ttl, absl::Time now) {
  member_ttl_ = member_ttl;
  last_response_ = now;
}

bool JobConditionTracker::OnHeartbeat(const absl::StatusOr<v1::HeartbeatResponse>& response, absl::Time now) {
  const JobCondition last = std::exchange(condition_, Judge(response, now));
  if (response.ok()) last_response_ = now;
  return condition_.state != last.state;
}

absl::Time JobConditionTracker::LostAt(const absl::Status& error) const {
  if (!IsUnresponsive(error)) return absl::InfinitePast();
  return last_response_ + std::max(return_timeout_, absl::IsUnavailable(error) ? member_ttl_ : kBusyTimeout);
}

JobCondition JobConditionTracker::Judge(const absl::StatusOr<v1::HeartbeatResponse>& response, absl::Time now) const {
  if (response.ok()) return {response->state(), response->reason(), response->failure()};
  if (!IsUnresponsive(response.status())) {
    return {v1::JOB_STATE_FAILED,
            std::string(response.status().message()),
            {},
            ReasonOf(response.status()) == v1::ERROR_REASON_MEMBER_LOST};
  }
  if (now < LostAt(response.status())) return condition_;
  JobCondition lost;
  lost.state = v1::JOB_STATE_FAILED;
  lost.reason = absl::StrCat(coordinator_, " has not responded for ",
                             absl::FormatDuration(absl::Trunc(now - last_response_, absl::Milliseconds(1))), ": ",
                             response.status().message());
  lost.before_start = condition_.state == v1::JOB_STATE_GATHERING;
  return lost;
}

}  // namespace ballast
