// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/checkpoint.pb.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/metrics/caused_wait_table.h"
#include "common/tensors/shard_map.h"
#include "server/coordinator/checkpoint_control.h"
#include "server/coordinator/job_status.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/server_control.h"
#include "server/coordinator/standby_table.h"
#include "server/coordinator/worker_control.h"

namespace ballast {

// Decides what each event means to one job: a member joins, sends a heartbeat, leaves or is lost. Owns the members and
// the rules for servers, workers and checkpoints.
//
// Members are found lost when others send heartbeats. A lost worker's data goes to the other workers, and servers
// learn to stop waiting for it; the job fails only if it has no worker for the job's return time. The job waits the
// same time for a lost server if its durability can bring the server back; with standbys, the lost server's standby
// takes its place instead. Otherwise, and when a member fails because of the job, the job fails and every member learns
// why.
//
// Invariant: TakeActions returns all that an event asks of others. Deliberately knows neither locks, threads, clocks,
// disks nor waiting calls: each event brings its time. Thread safety: none; the coordinator guards it.
class JobControl {
 public:
  struct HeartbeatReply {
    v1::JobState state = v1::JOB_STATE_GATHERING;
    std::string reason;
    // Set if the job has failed.
    v1::JobFailure failure;
    // Workers that have left or were lost, with their last incarnation.
    std::vector<Membership::Id> absent;
    // Servers only: true if the next heartbeat should follow at once; the checkpoint for which to capture the shard,
    // 0 for none.
    bool heartbeat_now = false;
    uint64_t capture_checkpoint_id = 0;
    // To a server: its standby, to which it sends changes. To a standby: the server that it becomes now.
    std::optional<Membership::Member> standby;
    std::optional<Membership::Id> promoted;
    // The last change that the reply reports, for AwaitSaved.
    uint64_t change = 0;
  };
  // The work that an event leaves to the coordinator, outside its lock.
  struct Actions {
    // The last change to save, after which waiting calls check again; 0: none.
    uint64_t publish = 0;
    // Lines to log.
    std::vector<std::string> notices;
    // The manifest of a checkpoint to commit, after which OnCommit or RetryCommit must follow, and the number of
    // checkpoints to keep. The job may end before the commit; the checkpoint is complete nevertheless.
    std::optional<internal::v1::CheckpointManifest> commit;
    uint32_t keep = 0;
  };

  JobControl(const JobOptions& options, absl::Time now);
  JobControl(const JobControl&) = delete;

  // Error codes: see CoordinatorService.Join.
  absl::StatusOr<Membership::Id> Join(Newcomer newcomer, absl::Time now);
  // Also detects lost members and advances the current checkpoint.
  absl::StatusOr<HeartbeatReply> Heartbeat(const Membership::Id& id, const v1::CheckpointPart& part,
                                           const ReplicationReport& report, absl::Time now);
  // See CausedWaitTable::Report; NOT_FOUND and FAILED_PRECONDITION as for a heartbeat.
  absl::Status ReportWaits(const Membership::Id& server,
                           const google::protobuf::RepeatedPtrField<v1::CausedWait>& waits);
  // Until the response to a heartbeat is sent, the member is waiting for the coordinator and cannot be lost; its
  // timeout starts again then.
  void BeginResponse(const Membership::Id& id) { unanswered_.insert(id); }
  void EndResponse(const Membership::Id& id, absl::Time now);
  // With an empty `failure` the member has finished. With a `failure` that is `worker_local` only this member is lost
  // and the others continue; any other failure fails the job.
  absl::Status Leave(const Membership::Id& id, std::string failure, bool worker_local, absl::Time now);
  // UNAVAILABLE with the names of the servers that have not joined; FAILED_PRECONDITION for a job other than the
  // coordinator's; otherwise the errors of ShardMap::Place.
  absl::StatusOr<ShardMap> PlaceTensors(absl::string_view job, absl::Span<const v1::TensorSpec> specs,
                                        absl::Span<const v1::TableSpec> tables = {});
  // `steps` and `batches` are the worker's totals so far.
  absl::Status CompleteLease(const Membership::Id& id, uint64_t lease, uint64_t steps, uint64_t batches,
                             absl::Time now);

  absl::Status ReportProgress(const Membership::Id& id, const v1::WorkerProgress& progress,
                              const v1::Evaluation* evaluation, absl::Time now);
  // See CoordinatorService.SaveCheckpoint.
  v1::SaveCheckpointResponse SaveCheckpoint(const v1::SaveCheckpointRequest& request, absl::Time now);

  void OnCommit(uint64_t checkpoint, const absl::Status& committed, absl::Time now) {
    checkpoints_.OnCommit(checkpoint, committed, now);
  }
  void RetryCommit() { checkpoints_.RetryCommit(); }

  // Returns what is to be done since the previous call.
  Actions TakeActions();
  WorkerControl& workers() { return workers_; }
  const WorkerControl& workers() const { return workers_; }
  const ServerControl& servers() const { return servers_; }
  const JobStatus& status() const { return status_; }

  // Returns whether the state must outlive the process. With durability CHECKPOINT it need not: it is part of the cut
  // to which all members return. With standbys it must even before the job is known, because it says which standby
  // may take over.
  bool Outlives() const;
  v1::JobProgress Progress(absl::Time now) const;
  // See CheckpointControl.
  absl::Duration checkpoint_interval() const { return checkpoints_.interval(); }
  v1::GetProgressResponse Describe(absl::Time now) const;
  internal::v1::CoordinatorState Export(absl::Time now) const;
  // Call before any event. INVALID_ARGUMENT if the state does not fit a job of this size.
  absl::Status Restore(const internal::v1::CoordinatorState& state, absl::Time now);

 private:
  // Returns the rank that a newcomer may take in a finished job: that of a lost worker, to save what was learned, or
  // that of a server that returns with its state.
  absl::StatusOr<uint32_t> LateRank(const Newcomer& newcomer) const;
  // `what` happened to a lost member, for example "sent no heartbeat for 3s". A server may still be alive.
  void Lose(const Membership::Id& id, const std::string& what, absl::Time now);
  void Update(absl::Time now);
  // Fails the job once lost members have not returned in time.
  void CheckReturns(absl::Time now);
  // Counts as a heartbeat of the member, unless it was lost or has left.
  void Hear(const Membership::Id& id, absl::Time now);
  // Takes time without any heartbeat off every member's silence; members that wait for a response count as heard.
  void DiscountSilence(absl::Time now);
  // Returns why the job has failed, or the members for which it waits.
  std::string Reason() const;

  const JobOptions options_;
  Membership members_;
  JobStatus status_;
  ServerControl servers_;
  WorkerControl workers_;
  CheckpointControl checkpoints_;
  CausedWaitTable caused_waits_;
  // Time of the last heartbeat of any member.
  absl::Time heard_;
  // Members whose heartbeats await a response, once for each such heartbeat.
  std::multiset<Membership::Id> unanswered_;
  // Time since which the job has had no worker.
  absl::Time deserted_since_ = absl::InfiniteFuture();
};

}  // namespace ballast
