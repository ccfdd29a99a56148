// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/job.pb.h"
#include "common/clock.h"
#include "common/shard_map.h"
#include "server/lease_book.h"
#include "server/membership.h"
#include "server/progress_board.h"
#include "server/wait_room.h"

namespace ballast {

// The job's control plane: membership, shard map, data leases and progress of one job, and what became of it.
// Members are given up by the others' heartbeats; a lost or failed member fails the job, and everyone hears why.
// Deliberately knows neither the wire nor a tensor's values. Thread safety: all methods may be called from any thread.
class Coordinator {
 public:
  struct Options {
    uint32_t servers = 1;
    uint32_t workers = 1;
    absl::Duration member_ttl = absl::Seconds(5);
  };
  struct Newcomer {
    MemberRole role = MemberRole::kServer;
    std::optional<uint32_t> rank;
    std::string address;
    std::string description;
    // Of a worker.
    v1::Job job;
    uint64_t train_examples = 0;
  };
  struct Verdict {
    v1::JobState state = v1::JOB_STATE_GATHERING;
    std::string reason;
  };
  // What AcquireLease answers: a lease, or that all is done, or whom it waited for.
  struct Grant {
    std::optional<DataLease> lease;
    bool finished = false;
    std::string waiting_for;
  };
  using GrantDone = std::function<void(absl::StatusOr<Grant>)>;

  Coordinator(const Options& options, const Clock* clock);

  // The codes of CoordinatorService.Join.
  absl::StatusOr<Membership::Id> Join(Newcomer newcomer);
  // Also finds out who has been silent too long.
  absl::StatusOr<Verdict> Heartbeat(const Membership::Id& id);
  // An empty `failure` ends the member's part well; another fails the job.
  absl::Status Leave(const Membership::Id& id, const std::string& failure);

  // UNAVAILABLE naming the servers that have not joined, else as ShardMap::Place.
  absl::StatusOr<ShardMap> PlaceTensors(absl::string_view job, absl::Span<const v1::TensorSpec> specs);
  ShardMap shard_map() const;

  // Calls `done` once, at the latest after `wait`; may call it before returning. ABORTED when the job has failed.
  // `held`: the leases that the worker has been answered and has not reported done.
  void AcquireLease(const Membership::Id& id, std::vector<uint64_t> held, absl::Duration wait, GrantDone done);
  absl::Status CompleteLease(const Membership::Id& id, uint64_t lease_id);

  absl::StatusOr<v1::JobProgress> ReportProgress(const Membership::Id& id, const v1::WorkerProgress& progress,
                                                 const v1::Evaluation* evaluation);
  v1::JobProgress progress() const;
  // Empty until the first worker has joined.
  std::string job_name() const;
  v1::GetProgressResponse Describe() const;

  const Options& options() const { return options_; }

 private:
  absl::Status AcceptJobLocked(const Newcomer& newcomer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateStateLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(std::string reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckWorkerLocked(const Membership::Id& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What AcquireLease can answer now; nothing when it must wait.
  std::optional<absl::StatusOr<Grant>> TryGrantLocked(const Membership::Id& id, absl::Span<const uint64_t> held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string ExplainWaitLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  v1::JobProgress ProgressLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void AcquireUntil(const Membership::Id& id, const std::vector<uint64_t>& held, absl::Time deadline, GrantDone done);
  // Lets everyone who waits for a lease look again.
  void Wake();

  const Options options_;
  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  v1::JobState state_ ABSL_GUARDED_BY(mutex_) = v1::JOB_STATE_GATHERING;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  Membership membership_ ABSL_GUARDED_BY(mutex_);
  ShardMap map_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Job> job_ ABSL_GUARDED_BY(mutex_);
  uint64_t train_examples_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<LeaseBook> leases_ ABSL_GUARDED_BY(mutex_);
  ProgressBoard board_ ABSL_GUARDED_BY(mutex_);
  absl::Time running_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time ended_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::vector<WaitRoom::Ticket> parked_ ABSL_GUARDED_BY(mutex_);
  // Last: its destruction ends the waits, whose callbacks use the rest.
  WaitRoom waits_;
};

}  // namespace ballast
