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

// The job's control plane: membership, shard map, data leases and progress of one job, and what became of it.
// Members are given up by the others' heartbeats. Without a worker the others go on: its data goes to them, and servers
// hear that nobody need wait for it; the job fails only when no worker is left for the job's return time. A server that
// is lost is waited for as long where the job's durability brings it back; else, and when a member fails for a reason
// that is not its own, the job fails, and everyone hears why. Where servers come in pairs, the standby of a lost server
// takes its place instead.
// Checkpoints of a job that asks for them are taken between leases of data, with every server's help.
// Invariant: what an answer depends on is in the journal, where there is one, before it is given: answers that come in
// callbacks wait for that, the others are to be given once AwaitSaved has called back.
// No method waits for a disk, if `disk_thread` is set.
// Deliberately knows neither the wire nor a tensor's values. Thread safety: all methods may be called from any thread.
class Coordinator {
 public:
  struct Options {
    uint32_t servers = 1;
    uint32_t workers = 1;
    absl::Duration member_ttl = absl::Seconds(3);
    // Servers come in pairs: a shard's server and its standby. For jobs of durability STANDBY, and for no others.
    bool with_standby = false;
    // Null: a job's state ends with the process. Outlives the coordinator.
    CoordinatorJournal* journal = nullptr;
    // Null: no checkpoints are taken. Outlives the coordinator.
    CheckpointFolder* checkpoints = nullptr;
    // Journal and checkpoints are written on a thread of the coordinator's own; else on the caller's, for tests.
    bool disk_thread = false;
    // Some member, which may be in the same process, calls that often: where none was heard for longer, the coordinator
    // was stopped or could not hear, and that time does not count as any member's silence.
    absl::Duration longest_silence = absl::InfiniteDuration();
    // Of the first checkpoint.
    uint64_t first_checkpoint = 1;
    // What the job resumes from, where it does.
    std::optional<internal::v1::CheckpointManifest> resume;
    // Gets a line for each thing that befalls a member, outside of all locks; may be empty.
    std::function<void(const std::string&)> log;
  };
  struct Newcomer {
    MemberRole role = MemberRole::kServer;
    std::optional<uint32_t> rank;
    std::string address;
    std::string description;
    // Of a worker.
    v1::Job job;
    uint64_t train_examples = 0;
    // Of a server: as Options has it.
    bool with_standby = false;
    // Of the operating system; 0: it did not say.
    uint64_t process = 0;
    // Of a server's control port, if it has one.
    std::string control_address;
  };
  struct HeartbeatReply {
    v1::JobState state = v1::JOB_STATE_GATHERING;
    std::string reason;
    // Of a job that has failed.
    v1::JobFailure failure;
    // Workers that were here and are not now, with their last incarnation.
    std::vector<Membership::Id> absent;
    // To a server: it should call again at once; the checkpoint that it is to capture its shard for, 0 for none.
    bool heartbeat_now = false;
    uint64_t capture_checkpoint_id = 0;
    // To a server: the standby that it is to feed. To a standby: the server that it is from now on.
    std::optional<Membership::Member> standby;
    std::optional<Membership::Id> promoted;
    // The last change that it tells of, for AwaitSaved.
    uint64_t change = 0;
  };
  // How a worker that joins begins.
  struct Beginning {
    uint64_t steps = 0;
    // Where its job resumes from a checkpoint and it is the rank's first since.
    std::optional<uint64_t> resumed_batches;
  };
  // What AcquireLease answers: a lease, or that all is done, or whom it waited for.
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

  // Calls `done` once: with OK when all that has changed until now, or until that change, outlives the process as far
  // as the job's durability asks for it; else with why it does not. May call it before returning.
  void AwaitSaved(SavedDone done);
  void AwaitSaved(uint64_t change, SavedDone done);
  // The same for the answer to that member's heartbeat. Until then the member waits for the coordinator and is not
  // silent; its silence counts from the answer on.
  void AwaitSaved(const Membership::Id& heard, uint64_t change, SavedDone done);

  // The codes of CoordinatorService.Join.
  absl::StatusOr<Membership::Id> Join(Newcomer newcomer);
  // Also finds out who has been silent too long, and takes the next checkpoint a step on. `part`: what a server says of
  // its part of one.
  absl::StatusOr<HeartbeatReply> Heartbeat(const Membership::Id& id, const v1::CheckpointPart& part = {},
                                           const ReplicationReport& news = {});
  // An empty `failure` ends the member's part well; the others go on, as they do where the failure is the member's own.
  // Any other fails the job.
  absl::Status Leave(const Membership::Id& id, const std::string& failure, bool worker_local = false);

  // UNAVAILABLE naming the servers that have not joined, FAILED_PRECONDITION for another job than the coordinator's,
  // else as ShardMap::Place.
  absl::StatusOr<ShardMap> PlaceTensors(absl::string_view job, absl::Span<const v1::TensorSpec> specs);
  ShardMap shard_map() const;
  // Calls `done` once when the map's epoch is above that one, or with the map as it is after `wait`; may call it before
  // returning. `peer` is who asks: RESOURCE_EXHAUSTED if too many calls wait, of it or in all. Answers what CancelWait
  // takes.
  WaitList::Ticket AwaitShardMap(uint64_t newer_than, absl::Duration wait, const std::string& peer, MapDone done);

  // Calls `done` once, at the latest after `wait`; may call it before returning. ABORTED when the job has failed.
  // `held`: the leases that the worker has been answered and has not reported done; INVALID_ARGUMENT for more than it
  // can have. One call of a worker waits at a time: a later one takes its place, and it ends with CANCELLED. Answers
  // what CancelWait takes.
  WaitList::Ticket AcquireLease(const Membership::Id& id, std::vector<uint64_t> held, absl::Duration wait,
                                GrantDone done);
  // Ends the wait with CANCELLED, unless it has ended.
  void CancelWait(WaitList::Ticket ticket) { waits_.End(ticket, absl::CancelledError("the caller has gone")); }
  // Calls that wait.
  size_t waiting() const { return waits_.size(); }
  // `steps`, `batches`: that the worker has made in all.
  absl::Status CompleteLease(const Membership::Id& id, uint64_t lease_id, uint64_t steps = 0, uint64_t batches = 0);

  absl::StatusOr<v1::JobProgress> ReportProgress(const Membership::Id& id, const v1::WorkerProgress& progress,
                                                 const v1::Evaluation* evaluation);
  Beginning BeginningOf(const Membership::Id& worker) const;
  v1::JobProgress progress() const;
  // The job of the first worker that has joined, or that tensors were placed for first; empty until then.
  std::string job_name() const;
  // Needs no AwaitSaved: who could take over is only said once it would not be forgotten.
  v1::GetProgressResponse Describe();

  // All that must outlive the process.
  internal::v1::CoordinatorState Export() const;
  // Goes on from an exported state; before anything else. INVALID_ARGUMENT where it is none of a job of this size.
  absl::Status Restore(const internal::v1::CoordinatorState& state);

  const Options& options() const { return options_; }

 private:
  // What a newcomer becomes that may join.
  struct Admission {
    MemberRole role = MemberRole::kServer;
    uint32_t rank = 0;
    // Members whose process has ended, since the newcomer has their address.
    std::vector<Membership::Member> replaced;
    // It is the first worker, whose job stands.
    bool brings_job = false;
    // Of that job, if the coordinator hands out its data.
    std::optional<LeaseTable> leases;
  };

  // Everything that may refuse a newcomer. Join changes something only once this has let it in.
  absl::StatusOr<Admission> CheckJoinLocked(const Newcomer& newcomer) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Membership::Id> AdmitLocked(Newcomer newcomer, Admission admission)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckJobLocked(const Newcomer& newcomer) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The leases of the job that the first worker brings.
  absl::StatusOr<LeaseTable> BeginLeases(const Newcomer& newcomer) const;
  // Whether the coordinator hands out the job's data. Of a job without a model, data and examples it does not: workers
  // bring their own, and know when they are done.
  static bool LeasesData(const v1::Job& job, uint64_t train_examples);
  LeaseTable::Options LeaseOptions(const v1::Job& job, uint64_t train_examples) const;
  void AdvanceCheckpointLocked(uint32_t server, const v1::CheckpointPart& part, HeartbeatReply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUpCheckpointLocked(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  internal::v1::CheckpointManifest MakeManifestLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has a checkpoint committed whose parts are all there.
  void BeginCommit() ABSL_LOCKS_EXCLUDED(mutex_);
  void CommitCheckpoint(const internal::v1::CheckpointManifest& manifest, uint32_t keep) ABSL_LOCKS_EXCLUDED(mutex_);
  // The rank that a newcomer may take in a job that is done: a worker's that was lost, to save what was learnt; a
  // server's that returns with what it holds.
  absl::StatusOr<uint32_t> LateRankLocked(const Newcomer& newcomer) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // A server's role and rank, and which members it replaces.
  absl::StatusOr<Admission> CheckServerLocked(const Newcomer& newcomer, std::optional<uint32_t> rank) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // RESOURCE_EXHAUSTED if no more calls may wait for the map.
  absl::Status CheckMapWaitLocked(const std::string& peer) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckDurabilityLocked(const v1::Job& job) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // What a member of a pair says, and what it is to do.
  absl::Status OnReplicationReportLocked(const Membership::Id& id, const ReplicationReport& news, HeartbeatReply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The standby that may become the server of that rank now.
  std::optional<Membership::Member> ReadyStandbyLocked(uint32_t rank) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The standby becomes the server where it may; `what` befell the one before. Whether it did.
  bool TakeOverLocked(uint32_t rank, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The standby of a server that was not heard of lately has lost it, too.
  void LoseSilentServerLocked(uint32_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For servers that are silent and may be alive: only where their standbys were heard of lately.
  void TakeOverSilentLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A server's process has ended, and with it what it held.
  void LoseServerLocked(uint32_t rank, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::GetProgressResponse DescribeNow() const;
  ShardMap ShardMapLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void WelcomeLocked(const Membership::Id& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateStateLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails the job once those who are gone have been waited for long enough.
  void CheckReturnsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `what` befell a member, which is gone: "worker 1 (…) was not heard of for 3s". A server may be alive all the same.
  void LoseLocked(const Membership::Id& id, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteLocked(std::string notice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What heartbeats tell of has changed.
  void ChangedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { told_ = ++changes_; }
  // The member lives, if it takes part still.
  void HearLocked(const Membership::Id& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes time in which nobody at all was heard off everyone's silence; members that wait for an answer have none.
  void DiscountSilenceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `at_fault`: the member without which the job goes no further, if it is one.
  void FailLocked(std::string reason, const std::optional<Membership::Id>& at_fault = std::nullopt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the job began from the checkpoint in the options.
  bool ResumedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return options_.resume.has_value() && options_.resume->id() == resumed_from_;
  }
  absl::Duration ReturnTimeLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Duration RunningForLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckWorkerLocked(const Membership::Id& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What AcquireLease can answer a worker now; nothing when it must wait.
  std::optional<absl::StatusOr<Grant>> TryGrantLocked(const Membership::Id& id, absl::Span<const uint64_t> held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<ShardMap> Place(absl::string_view job, absl::Span<const v1::TensorSpec> specs);
  std::string ExplainWaitLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Why the job has failed, or whom it waits for.
  std::string ReasonLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  v1::JobProgress ProgressLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  struct LeaseWait;
  struct MapWait;
  // Answers a call whose wait has ended, and forgets it.
  void EndLeaseWait(const LeaseWait& call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndMapWait(const MapWait& call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerLease(const LeaseWait& call, absl::StatusOr<Grant> grant) ABSL_LOCKS_EXCLUDED(mutex_);
  // Answers once that change is saved.
  void AnswerMap(uint64_t change, ShardMap map, MapDone done) ABSL_LOCKS_EXCLUDED(mutex_);
  internal::v1::CoordinatorState ExportLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Whether the state is to outlive the process. Under checkpoint it is part of the cut that all go back to. Who may
  // take over is known before the job is.
  bool OutlivesLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Puts what has changed until now into the journal, and syncs it where members have come or gone, or under WAL_SYNC;
  // one thread at a time.
  GroupSave::Outcome SaveNow() ABSL_LOCKS_EXCLUDED(mutex_);
  // After a change: begins to save it, logs it, and lets everyone who waits for a lease look again.
  void Publish() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  // Of what is exported; the last one that heartbeats tell of: neither a lease nor progress; and the last of those that
  // outlives the machine.
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t told_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_told_ ABSL_GUARDED_BY(mutex_) = 0;
  // When anyone was heard last.
  absl::Time heard_ ABSL_GUARDED_BY(mutex_);
  // Members whose heartbeats wait to be answered, by a number of each such heartbeat.
  std::map<uint64_t, Membership::Id> unanswered_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_unanswered_ ABSL_GUARDED_BY(mutex_) = 0;
  // A checkpoint is being committed.
  bool committing_ ABSL_GUARDED_BY(mutex_) = false;
  v1::JobState state_ ABSL_GUARDED_BY(mutex_) = v1::JOB_STATE_GATHERING;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  v1::JobFailure failure_ ABSL_GUARDED_BY(mutex_);
  Membership membership_ ABSL_GUARDED_BY(mutex_);
  StandbyTable standbys_ ABSL_GUARDED_BY(mutex_);
  ShardMap map_ ABSL_GUARDED_BY(mutex_);
  // Named by a worker's Join or by PlaceTensors, whichever comes first.
  std::string job_name_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Job> job_ ABSL_GUARDED_BY(mutex_);
  uint64_t train_examples_ ABSL_GUARDED_BY(mutex_) = 0;
  // The checkpoint that the job began from; 0: none. After a restart Options::resume may name another, of the job
  // itself.
  uint64_t resumed_from_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<LeaseTable> leases_ ABSL_GUARDED_BY(mutex_);
  // Since the job runs, where it takes checkpoints.
  std::optional<CheckpointPlan> plan_ ABSL_GUARDED_BY(mutex_);
  ProgressTracker board_ ABSL_GUARDED_BY(mutex_);
  absl::Time running_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time ended_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // Since when no worker takes part.
  absl::Time deserted_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  uint32_t workers_lost_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t servers_lost_ ABSL_GUARDED_BY(mutex_) = 0;
  // The newest, and how many there were in all and were logged.
  std::deque<std::string> notices_ ABSL_GUARDED_BY(mutex_);
  uint64_t notices_made_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t notices_logged_ ABSL_GUARDED_BY(mutex_) = 0;
  // Calls that wait: for a lease, by worker; for a newer map, by the epoch that they know, and counted by peer.
  std::map<std::pair<uint32_t, uint64_t>, WaitList::Ticket> lease_waits_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<uint64_t, WaitList::Ticket>> map_waits_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint32_t> map_waits_of_peer_ ABSL_GUARDED_BY(mutex_);
  // Null without disk_thread. It ends before all that its tasks use.
  std::unique_ptr<Executor> disk_;
  GroupSave saves_;
  // Last: its destruction ends the waits, whose callbacks use the rest.
  WaitList waits_;
};

}  // namespace ballast
