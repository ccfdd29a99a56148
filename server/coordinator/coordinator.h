// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
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
#include "ballast/v1/job.pb.h"
#include "common/concurrency/clock.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/wait_list.h"
#include "common/storage/checkpoint_folder.h"
#include "common/tensors/shard_map.h"
#include "server/coordinator/checkpoint_plan.h"
#include "server/coordinator/coordinator_journal.h"
#include "server/coordinator/group_save.h"
#include "server/coordinator/lease_table.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/progress_tracker.h"
#include "server/coordinator/replication_report.h"
#include "server/coordinator/standby_table.h"

namespace ballast {

// Owns the control plane of one job: members, shard map, data leases, progress, checkpoints and the outcome. Members
// are found lost when others send heartbeats. A lost worker's data goes to the other workers, and servers learn to
// stop waiting for it; the job fails only if it has no worker for the job's return time. The coordinator waits the
// same time for a lost server if the job's durability can bring it back; with standbys, the lost server's standby
// takes its place instead. Otherwise, and when a member fails because of the job, the job fails and every member
// learns why. Checkpoints are taken between leases of data, with the help of every server.
// Invariant: everything that a response depends on is in the journal, if there is one, before the response is sent.
// Responses in callbacks wait for that; other responses must wait for AwaitSaved. No method waits for a disk if
// `disk_thread` is set.
// Deliberately knows neither the wire nor a tensor's values. Thread safety: all methods may be called from any
// thread.
class Coordinator {
 public:
  struct Options {
    uint32_t servers = 1;
    uint32_t workers = 1;
    absl::Duration member_ttl = absl::Seconds(3);
    // Each server has a standby. For jobs with durability STANDBY only.
    bool with_standby = false;
    // Null: the state is lost with the process. Outlives the coordinator.
    CoordinatorJournal* journal = nullptr;
    // Null: no checkpoints are taken. Outlives the coordinator.
    CheckpointFolder* checkpoints = nullptr;
    // Writes journal and checkpoints on the coordinator's own thread; otherwise on the caller's, for tests.
    bool disk_thread = false;
    // Some member sends heartbeats at least this often. If none arrived for longer, the coordinator itself was
    // stopped or cut off, and that time does not count against any member.
    absl::Duration longest_silence = absl::InfiniteDuration();
    // Id of the first checkpoint.
    uint64_t first_checkpoint = 1;
    // The checkpoint to resume from, if any.
    std::optional<internal::v1::CheckpointManifest> resume;
    // Gets a log line for each change of a member, outside all locks; may be empty.
    std::function<void(const std::string&)> log;
  };
  struct Newcomer {
    MemberRole role = MemberRole::kServer;
    std::optional<uint32_t> rank;
    std::string address;
    std::string description;
    // Workers only.
    v1::Job job;
    uint64_t train_examples = 0;
    bool with_standby = false;
    // Operating system's process id; 0: unknown.
    uint64_t process = 0;
    // Address of a server's control port, if it has one.
    std::string control_address;
  };
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
  // The state from which a joining worker starts.
  struct Beginning {
    uint64_t steps = 0;
    // Set if the job resumed from a checkpoint and this is the first worker of its rank since.
    std::optional<uint64_t> resumed_batches;
  };
  // The result of AcquireLease: a lease, or `finished`, or what the call was waiting for when its time ran out.
  struct Grant {
    std::optional<DataLease> lease;
    bool finished = false;
    std::string waiting_for;
  };
  using GrantDone = std::function<void(absl::StatusOr<Grant>)>;
  using MapDone = std::function<void(absl::StatusOr<ShardMap>)>;

  using SavedDone = GroupSave::Done;

  Coordinator(const Options& options, const Clock* clock);
  ~Coordinator();

  // Calls `done` once: with OK when all changes so far, or all up to `change`, outlive the process as far as the
  // job's durability requires it; otherwise with the error of the save. May call it before returning.
  void AwaitSaved(SavedDone done);
  void AwaitSaved(uint64_t change, SavedDone done);
  // The same for the response to a heartbeat of `heard`. Until `done` is called the member is waiting for the
  // coordinator and cannot be lost; its timeout starts again then.
  void AwaitSaved(const Membership::Id& heard, uint64_t change, SavedDone done);

  // Error codes: see CoordinatorService.Join.
  absl::StatusOr<Membership::Id> Join(Newcomer newcomer);
  // Also detects lost members and advances the current checkpoint. `part` is the state of a server's part of it.
  absl::StatusOr<HeartbeatReply> Heartbeat(const Membership::Id& id, const v1::CheckpointPart& part = {},
                                           const ReplicationReport& news = {});
  // With an empty `failure` the member has finished. With a `failure` that is `worker_local` only this member is lost
  // and the others continue; any other failure fails the job.
  absl::Status Leave(const Membership::Id& id, const std::string& failure, bool worker_local = false);

  // UNAVAILABLE with the names of the servers that have not joined; FAILED_PRECONDITION for a job other than the
  // coordinator's; otherwise the errors of ShardMap::Place.
  absl::StatusOr<ShardMap> PlaceTensors(absl::string_view job, absl::Span<const v1::TensorSpec> specs);
  ShardMap shard_map() const;
  // Calls `done` once: when the map's epoch exceeds `newer_than`, or with the current map after `wait`; may call it
  // before returning. RESOURCE_EXHAUSTED if too many calls wait, from `peer` or in total. Returns a ticket for
  // CancelWait.
  WaitList::Ticket AwaitShardMap(uint64_t newer_than, absl::Duration wait, const std::string& peer, MapDone done);

  // Calls `done` once, after `wait` at the latest; may call it before returning. ABORTED if the job has failed.
  // `held` lists the leases that the worker has received and not reported done; INVALID_ARGUMENT if there are more
  // than a worker can have. Each worker has at most one waiting call: a later call ends the earlier one with
  // CANCELLED. Returns a ticket for CancelWait.
  WaitList::Ticket AcquireLease(const Membership::Id& id, std::vector<uint64_t> held, absl::Duration wait,
                                GrantDone done);
  void CancelWait(WaitList::Ticket ticket) { waits_.End(ticket, absl::CancelledError("cancelled by the caller")); }
  // Number of waiting calls.
  size_t waiting() const { return waits_.size(); }
  // `steps` and `batches` are the worker's totals so far.
  absl::Status CompleteLease(const Membership::Id& id, uint64_t lease_id, uint64_t steps = 0, uint64_t batches = 0);

  absl::StatusOr<v1::JobProgress> ReportProgress(const Membership::Id& id, const v1::WorkerProgress& progress,
                                                 const v1::Evaluation* evaluation);
  Beginning BeginningOf(const Membership::Id& worker) const;
  v1::JobProgress progress() const;
  // The job of the first worker to join, or of the first PlaceTensors; empty until then.
  std::string job_name() const;
  // Needs no AwaitSaved: a standby is reported as in step only once that is saved.
  v1::GetProgressResponse Describe();

  // The state that must outlive the process.
  internal::v1::CoordinatorState Export() const;
  // Restores an exported state; must be called first. INVALID_ARGUMENT if it does not fit a job of this size.
  absl::Status Restore(const internal::v1::CoordinatorState& state);

  const Options& options() const { return options_; }

 private:
  // The role and rank of a newcomer that may join.
  struct Admission {
    MemberRole role = MemberRole::kServer;
    uint32_t rank = 0;
    // Members whose process must have ended, because the newcomer has their address.
    std::vector<Membership::Member> replaced;
    // True for the first worker, whose job becomes the coordinator's.
    bool brings_job = false;
    // Leases of that job, if the coordinator hands out its data.
    std::optional<LeaseTable> leases;
  };

  // Makes every check that may refuse a newcomer; changes nothing.
  absl::StatusOr<Admission> CheckJoinLocked(const Newcomer& newcomer) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Membership::Id> AdmitLocked(Newcomer newcomer, Admission admission)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckJobLocked(const Newcomer& newcomer) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<LeaseTable> BeginLeases(const Newcomer& newcomer) const;
  // Returns whether the coordinator hands out the job's data. It does not for a job without a model, data and
  // examples: its workers bring their own data and know when they are done.
  static bool LeasesData(const v1::Job& job, uint64_t train_examples);
  LeaseTable::Options LeaseOptions(const v1::Job& job, uint64_t train_examples) const;
  void AdvanceCheckpointLocked(uint32_t server, const v1::CheckpointPart& part, HeartbeatReply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUpCheckpointLocked(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  internal::v1::CheckpointManifest MakeManifestLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts to commit a checkpoint if all its parts are written.
  void BeginCommit() ABSL_LOCKS_EXCLUDED(mutex_);
  void CommitCheckpoint(const internal::v1::CheckpointManifest& manifest, uint32_t keep) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the rank that a newcomer may take in a finished job: that of a lost worker, to save what was learned, or
  // that of a server that returns with its state.
  absl::StatusOr<uint32_t> LateRankLocked(const Newcomer& newcomer) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Admission> CheckServerLocked(const Newcomer& newcomer, std::optional<uint32_t> rank) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckMapWaitLocked(const std::string& peer) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckDurabilityLocked(const v1::Job& job) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Handles the report of a server or standby on its peer, and fills in what it must do.
  absl::Status OnReplicationReportLocked(const Membership::Id& id, const ReplicationReport& news, HeartbeatReply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the standby of that rank if it may become the server now.
  std::optional<Membership::Member> ReadyStandbyLocked(uint32_t rank) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Makes the standby the server if it may; `what` happened to the previous server. Returns true if it did.
  bool TakeOverLocked(uint32_t rank, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The standby has lost its server, too: declares the server lost if it has missed heartbeats.
  void LoseSilentServerLocked(uint32_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets standbys take over from lost servers, which may still be alive, if their own heartbeats are recent.
  void TakeOverSilentLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The process of a server has ended, and its state is lost.
  void LoseServerLocked(uint32_t rank, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::GetProgressResponse DescribeNow() const;
  ShardMap ShardMapLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void WelcomeLocked(const Membership::Id& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateStateLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails the job once lost members have not returned in time.
  void CheckReturnsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `what` happened to a lost member: "worker 1 (…) sent no heartbeat for 3s". A server may still be alive.
  void LoseLocked(const Membership::Id& id, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteLocked(std::string notice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Something that heartbeats report has changed.
  void ChangedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { told_ = ++changes_; }
  // Counts as a heartbeat of the member, unless it was lost or has left.
  void HearLocked(const Membership::Id& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes time without any heartbeat off every member's silence; members that wait for a response count as heard.
  void DiscountSilenceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `at_fault` is the member whose loss or failure ends the job, if it is a single one.
  void FailLocked(std::string reason, const std::optional<Membership::Id>& at_fault = std::nullopt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if the job began from the checkpoint in the options.
  bool ResumedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return options_.resume.has_value() && options_.resume->id() == resumed_from_;
  }
  absl::Duration ReturnTimeLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Duration RunningForLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckWorkerLocked(const Membership::Id& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the immediate result of AcquireLease; nothing if the call must wait.
  std::optional<absl::StatusOr<Grant>> TryGrantLocked(const Membership::Id& id, absl::Span<const uint64_t> held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<ShardMap> Place(absl::string_view job, absl::Span<const v1::TensorSpec> specs);
  std::string ExplainWaitLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns why the job has failed, or the members for which it waits.
  std::string ReasonLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  v1::JobProgress ProgressLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  struct LeaseWait;
  struct MapWait;
  // Responds to a call whose wait has ended, and forgets it.
  void EndLeaseWait(const LeaseWait& call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndMapWait(const MapWait& call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerLease(const LeaseWait& call, absl::StatusOr<Grant> grant) ABSL_LOCKS_EXCLUDED(mutex_);
  // Responds once that change is saved.
  void AnswerMap(uint64_t change, ShardMap map, MapDone done) ABSL_LOCKS_EXCLUDED(mutex_);
  internal::v1::CoordinatorState ExportLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns whether the state must outlive the process. With durability CHECKPOINT it need not: it is part of the cut
  // to which all members return. With standbys it must even before the job is known, because it says which standby
  // may take over.
  bool OutlivesLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Saves all changes so far in the journal, and syncs it if members have changed or under WAL_SYNC; one thread at a
  // time.
  GroupSave::Outcome SaveNow() ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after each change: starts to save it, logs it, and makes waiting calls check again.
  void Publish() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  // Counts changes of the exported state; the last change that heartbeats report (neither a lease nor progress); the
  // last such change that is synced.
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t told_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_told_ ABSL_GUARDED_BY(mutex_) = 0;
  // Time of the last heartbeat of any member.
  absl::Time heard_ ABSL_GUARDED_BY(mutex_);
  // Members whose heartbeats await a response, by a number for each such heartbeat.
  std::map<uint64_t, Membership::Id> unanswered_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_unanswered_ ABSL_GUARDED_BY(mutex_) = 0;
  bool committing_ ABSL_GUARDED_BY(mutex_) = false;
  v1::JobState state_ ABSL_GUARDED_BY(mutex_) = v1::JOB_STATE_GATHERING;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  v1::JobFailure failure_ ABSL_GUARDED_BY(mutex_);
  Membership membership_ ABSL_GUARDED_BY(mutex_);
  StandbyTable standbys_ ABSL_GUARDED_BY(mutex_);
  ShardMap map_ ABSL_GUARDED_BY(mutex_);
  // Set by a worker's Join or by PlaceTensors, whichever comes first.
  std::string job_name_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Job> job_ ABSL_GUARDED_BY(mutex_);
  uint64_t train_examples_ ABSL_GUARDED_BY(mutex_) = 0;
  // The checkpoint from which the job began; 0: none. After a restart Options::resume may name a later one of the
  // same job.
  uint64_t resumed_from_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<LeaseTable> leases_ ABSL_GUARDED_BY(mutex_);
  // Set once the job runs, if it takes checkpoints.
  std::optional<CheckpointPlan> plan_ ABSL_GUARDED_BY(mutex_);
  ProgressTracker board_ ABSL_GUARDED_BY(mutex_);
  absl::Time running_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time ended_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // Time since which the job has had no worker.
  absl::Time deserted_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  uint32_t workers_lost_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t servers_lost_ ABSL_GUARDED_BY(mutex_) = 0;
  // The newest notices; the numbers of all notices so far and of those logged.
  std::deque<std::string> notices_ ABSL_GUARDED_BY(mutex_);
  uint64_t notices_made_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t notices_logged_ ABSL_GUARDED_BY(mutex_) = 0;
  // Waiting calls: for a lease, by worker; for a newer map, by the epoch that they know, and counted by peer.
  std::map<std::pair<uint32_t, uint64_t>, WaitList::Ticket> lease_waits_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<uint64_t, WaitList::Ticket>> map_waits_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint32_t> map_waits_of_peer_ ABSL_GUARDED_BY(mutex_);
  // Null without disk_thread. Reset first by the destructor, because its tasks use the rest.
  std::unique_ptr<Executor> disk_;
  GroupSave saves_;
  // Last: its destruction ends the waits, whose callbacks use the rest.
  WaitList waits_;
};

}  // namespace ballast
