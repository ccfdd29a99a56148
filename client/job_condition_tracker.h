// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// The state of the job as seen by one member.
struct JobCondition {
  v1::JobState state = v1::JOB_STATE_GATHERING;
  std::string reason;
  // Set if the job has failed.
  v1::JobFailure failure;
  // The job continues without this member, which was declared lost or replaced under its rank. It may join again.
  bool lost = false;
  // The coordinator was lost before all members had joined, so no job was lost, and the member may start again.
  bool before_start = false;
};

// Owns a job's condition as one member derives it from the responses to its heartbeats, and decides when a coordinator
// that does not respond is lost. Does not know connections, threads or the clock. Thread safety: none; guard it.
class JobConditionTracker {
 public:
  // `coordinator` names the coordinator in reasons: "coordinator at host:port".
  explicit JobConditionTracker(std::string coordinator) : coordinator_(std::move(coordinator)) {}

  // Sets the time for a lost coordinator to return.
  void set_return_timeout(absl::Duration timeout) { return_timeout_ = timeout; }
  absl::Duration return_timeout() const { return return_timeout_; }

  // Begins the heartbeats of a member with that time to live.
  void Begin(absl::Duration member_ttl, absl::Time now);

  // Updates the condition from the result of a heartbeat that ended at `now`; returns whether the state changed.
  bool OnHeartbeat(const absl::StatusOr<v1::HeartbeatResponse>& response, absl::Time now);

  const JobCondition& condition() const { return condition_; }

  // Returns the time from which heartbeats that fail with this error mean that the coordinator is lost; InfinitePast if
  // it refused them.
  absl::Time LostAt(const absl::Status& error) const;

 private:
  JobCondition Judge(const absl::StatusOr<v1::HeartbeatResponse>& response, absl::Time now) const;

  const std::string coordinator_;
  absl::Duration return_timeout_;
  absl::Duration member_ttl_;
  absl::Time last_response_;
  JobCondition condition_;
};

}  // namespace ballast
