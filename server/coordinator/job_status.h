// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ballast/internal/v1/checkpoint.pb.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/status/job_failure.h"
#include "server/coordinator/membership.h"

namespace ballast {

// The size of a job and the limits of its coordinator.
struct JobOptions {
  uint32_t servers = 1;
  uint32_t workers = 1;
  absl::Duration member_ttl = absl::Seconds(3);
  // Each server has a standby. For jobs with durability STANDBY only.
  bool with_standby = false;
  // Some member sends heartbeats at least this often. If none arrived for longer, the coordinator itself was stopped
  // or cut off, and that time does not count against any member.
  absl::Duration longest_silence = absl::InfiniteDuration();
  // Id of the first checkpoint; absent: no checkpoints are taken.
  std::optional<uint64_t> first_checkpoint;
  // The checkpoint to resume from, if any.
  std::optional<internal::v1::CheckpointManifest> resume;
};

// Owns the state of a job, its outcome, losses and notices, and the numbers of all changes of the coordinator's
// state. Invariant: a job that has ended stays as it is. Deliberately does not know what leads to a change.
// Thread safety: none; the coordinator guards it.
class JobStatus {
 public:
  v1::JobState state() const { return state_; }
  bool gathering() const { return state_ == v1::JOB_STATE_GATHERING; }
  bool running() const { return state_ == v1::JOB_STATE_RUNNING; }
  bool finished() const { return state_ == v1::JOB_STATE_FINISHED; }
  bool failed() const { return state_ == v1::JOB_STATE_FAILED; }
  // Why the job has failed; empty until then.
  const std::string& reason() const { return reason_; }
  const v1::JobFailure& failure() const { return failure_; }
  absl::Status Error() const { return JobFailedError(reason_, failure_); }
  // Empty if there was no notice.
  std::string last_notice() const { return notices_.empty() ? "" : notices_.back(); }

  // All members have joined. The job has already run for `before`.
  void Run(absl::Duration before, absl::Time now);
  void Finish(absl::Time now);
  // `at_fault` is the member whose loss or failure ends the job, if it is a single one.
  void Fail(std::string reason, const std::optional<Membership::Member>& at_fault, absl::Time now);
  void Note(std::string notice);
  void CountLostWorker() { ++workers_lost_; }
  void CountLostServer() { ++servers_lost_; }

  // Three kinds of change: Change is what heartbeats report, Release lets waiting calls check again, and Record only
  // has to be saved. Each includes the next.
  void Change() { told_ = Release(); }
  uint64_t Release() { return published_ = ++changes_; }
  void Record() { ++changes_; }
  // Number of the last change, and of the last one that heartbeats report.
  uint64_t changes() const { return changes_; }
  uint64_t told() const { return told_; }
  // Returns the last change if there was one other than a record since the previous call; otherwise 0.
  uint64_t TakePublished() { return std::exchange(published_, 0) == 0 ? 0 : changes_; }
  // Returns the notices since the previous call, oldest first.
  std::vector<std::string> TakeNotices();

  absl::Duration RunningFor(absl::Time now) const;
  // Fills in a JobProgress or a CoordinatorState.
  template <typename Message>
  void Fill(Message& to, absl::Time now) const {
    to.set_state(state_);
    to.set_reason(reason_);
    if (failed()) *to.mutable_failure() = failure_;
    to.set_seconds(absl::ToDoubleSeconds(RunningFor(now)));
    to.set_workers_lost(workers_lost_);
    to.set_servers_lost(servers_lost_);
    to.mutable_notices()->Add(notices_.begin(), notices_.end());
    to.set_notices_made(notices_made_);
  }
  void Restore(const internal::v1::CoordinatorState& state, absl::Time now);

 private:
  v1::JobState state_ = v1::JOB_STATE_GATHERING;
  std::string reason_;
  v1::JobFailure failure_;
  absl::Time running_since_ = absl::InfiniteFuture();
  absl::Time ended_ = absl::InfiniteFuture();
  uint32_t workers_lost_ = 0;
  uint32_t servers_lost_ = 0;
  // The newest notices; the numbers of all notices so far and of those taken.
  std::deque<std::string> notices_;
  uint64_t notices_made_ = 0;
  uint64_t notices_taken_ = 0;
  uint64_t changes_ = 0;
  uint64_t told_ = 0;
  uint64_t published_ = 0;
};

}  // namespace ballast
