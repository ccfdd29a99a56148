// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/checkpoint.pb.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/concurrency/clock.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/wait_list.h"
#include "common/storage/checkpoint_folder.h"
#include "common/tensors/shard_map.h"
#include "server/coordinator/coordinator_journal.h"
#include "server/coordinator/group_save.h"
#include "server/coordinator/job_control.h"

namespace ballast {

// The control plane of one job: guards a JobControl, saves its state, holds the calls that wait, and commits its
// checkpoints.
// Invariant: everything that a response depends on is in the journal, if there is one, before the response is sent.
// Responses in callbacks wait for that; other responses must wait for AwaitSaved. No method waits for a disk if
// `disk_thread` is set.
// Deliberately knows neither the rules of a job nor the wire. Thread safety: all methods may be called from any
// thread.
class Coordinator {
 public:
  struct Options {
    JobOptions job;
    // Null: the state is lost with the process. Outlives the coordinator.
    CoordinatorJournal* journal = nullptr;
    // Takes the checkpoints, if JobOptions::first_checkpoint is set. Outlives the coordinator.
    CheckpointFolder* checkpoints = nullptr;
    // Writes journal and checkpoints on the coordinator's own thread; otherwise on the caller's, for tests.
    bool disk_thread = false;
    // Gets a log line for each change of a member, outside all locks; may be empty.
    std::function<void(const std::string&)> log;
  };
  using HeartbeatReply = JobControl::HeartbeatReply;
  using Grant = WorkerControl::Grant;
  using GrantDone = std::function<void(absl::StatusOr<Grant>)>;
  using MapDone = std::function<void(absl::StatusOr<ShardMap>)>;
  using SavedDone = GroupSave::Done;

  Coordinator(const Options& options, const Clock* clock);
  ~Coordinator();

  // Calls `done` once: with OK when all changes so far, or all up to `change`, outlive the process as far as the
  // job's durability requires it; otherwise with the error of the save. May call it before returning.
  void AwaitSaved(SavedDone done);
  void AwaitSaved(uint64_t change, SavedDone done);
  // The same for the response to a heartbeat of `heard`; see JobControl::BeginResponse.
  void AwaitSaved(const Membership::Id& heard, uint64_t change, SavedDone done);

  // These are as in JobControl.
  absl::StatusOr<Membership::Id> Join(Newcomer newcomer);
  absl::StatusOr<HeartbeatReply> Heartbeat(const Membership::Id& id, const v1::CheckpointPart& part = {},
                                           const ReplicationReport& report = {});
  absl::Status ReportWaits(const Membership::Id& server,
                           const google::protobuf::RepeatedPtrField<v1::CausedWait>& waits);
  absl::Status Leave(const Membership::Id& id, const std::string& failure, bool worker_local = false);
  absl::StatusOr<ShardMap> PlaceTensors(absl::string_view job, absl::Span<const v1::TensorSpec> specs,
                                        absl::Span<const v1::TableSpec> tables = {});
  absl::Status CompleteLease(const Membership::Id& id, uint64_t lease, uint64_t steps = 0, uint64_t batches = 0);
  absl::StatusOr<v1::JobProgress> ReportProgress(const Membership::Id& id, const v1::WorkerProgress& progress,
                                                 const v1::Evaluation* evaluation,
                                                 const v1::ReportProgressRequest::CompletedLease* completed = nullptr);
  v1::SaveCheckpointResponse SaveCheckpoint(const v1::SaveCheckpointRequest& request);
  WorkerControl::Beginning BeginningOf(const Membership::Id& worker) const;
  v1::JobProgress progress() const;
  absl::Duration checkpoint_interval() const;
  // The job of the first worker to join, or of the first PlaceTensors; empty until then.
  std::string job_name() const;
  ShardMap shard_map() const;
  // Needs no AwaitSaved: a standby is reported as in step only once that is saved.
  v1::GetProgressResponse Describe();

  // Calls `done` once: when the map's epoch exceeds `newer_than`, or with the current map after `wait`; may call it
  // before returning. RESOURCE_EXHAUSTED if too many calls wait, from `peer` or in total. Returns a ticket for
  // CancelWait.
  WaitList::Ticket AwaitShardMap(uint64_t newer_than, absl::Duration wait, const std::string& peer, MapDone done);
  // Calls `done` once, after `wait` at the latest; may call it before returning. ABORTED if the job has failed.
  // `held` lists the leases that the worker has received and not reported done; INVALID_ARGUMENT if there are more
  // than a worker can have. `epochs_done` and `found` are as for WorkerControl::Acquire. Each worker has at most one
  // waiting call: a later call ends the earlier one with CANCELLED. Returns a ticket for CancelWait.
  WaitList::Ticket AcquireLease(const Membership::Id& id, std::vector<uint64_t> held, absl::Duration wait,
                                GrantDone done, uint32_t epochs_done = 0,
                                const std::optional<StreamSpan>& found = std::nullopt);
  void CancelWait(WaitList::Ticket ticket) { waits_.End(ticket, absl::CancelledError("cancelled by the caller")); }
  // Ends the waiting calls, also later ones, with `reason`, because the process ends.
  void EndWaits(const absl::Status& reason) { waits_.Close(reason); }
  // Number of waiting calls.
  size_t waiting() const { return waits_.size(); }

  // The state that must outlive the process.
  internal::v1::CoordinatorState Export() const;
  absl::Status Restore(const internal::v1::CoordinatorState& state);

  const Options& options() const { return options_; }

 private:
  struct LeaseWait;
  struct MapWait;

  // Calls `event` under the lock with the rules and the time, then carries out the actions that it led to.
  template <typename Event>
  auto Apply(Event event) ABSL_LOCKS_EXCLUDED(mutex_);
  // Saves and logs changes, makes waiting calls check again, and starts to commit a checkpoint.
  void CarryOut(JobControl::Actions actions) ABSL_LOCKS_EXCLUDED(mutex_);
  void CommitCheckpoint(const internal::v1::CheckpointManifest& manifest, uint32_t keep) ABSL_LOCKS_EXCLUDED(mutex_);
  // RESOURCE_EXHAUSTED if one more call from `peer` may not wait for a map.
  absl::Status CheckMapWaitLocked(const std::string& peer) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Responds to a call whose wait has ended, and forgets it.
  void EndLeaseWait(const LeaseWait& call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndMapWait(const MapWait& call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Responds with a result once that change is saved, and with an error at once.
  template <typename Result>
  void Answer(uint64_t change, absl::StatusOr<Result> result, std::function<void(absl::StatusOr<Result>)> done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Saves all changes so far in the journal, and syncs it if members have changed or under WAL_SYNC; one thread at a
  // time.
  GroupSave::Outcome SaveNow() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  JobControl control_ ABSL_GUARDED_BY(mutex_);
  // The last change that heartbeats report and that is synced.
  uint64_t synced_told_ ABSL_GUARDED_BY(mutex_) = 0;
  // Waiting calls: for a lease, by worker; for a newer map, by the epoch that they know, and counted by peer.
  std::map<Membership::Id, WaitList::Ticket> lease_waits_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<uint64_t, WaitList::Ticket>> map_waits_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint32_t> map_waits_of_peer_ ABSL_GUARDED_BY(mutex_);
  // Null without disk_thread. Reset first by the destructor, because its tasks use the rest.
  std::unique_ptr<Executor> disk_;
  GroupSave saves_;
  // Last: its destruction ends the waits, whose callbacks use the rest.
  WaitList waits_;
};

}  // namespace ballast
