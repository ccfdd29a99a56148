// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ballast/internal/v1/checkpoint.pb.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "server/coordinator/job_status.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/server_control.h"
#include "server/coordinator/worker_control.h"

namespace ballast {

// Owns the schedule of a job's checkpoints and the phase of the current one. First, servers learn to send heartbeats
// often, so that workers stop only briefly. Then no data is handed out until all data held is reported done. Then
// every shard is captured, and training continues while they are written. Deliberately knows neither leases nor
// files.
class CheckpointPlan {
 public:
  enum class Phase {
    kIdle,
    // Some servers do not know yet.
    kAnnounced,
    // No data is handed out until no worker holds any.
    kDraining,
    // All workers wait until every shard is captured.
    kCapturing,
    // Training continues; shards are being written.
    kWriting,
    // Every shard's file is on disk.
    kCommitting,
  };
  struct Options {
    absl::Duration interval;
    uint32_t servers = 1;
    // Id of the first checkpoint.
    uint64_t first_id = 1;
  };
  // Limit for each phase from the announcement to the capture.
  static constexpr absl::Duration kMaxStopped = absl::Seconds(60);
  static constexpr absl::Duration kMaxWriting = absl::Minutes(30);

  CheckpointPlan(const Options& options, absl::Time now)
      : options_(options), due_(now + options.interval), next_id_(options.first_id), done_(options.servers) {}

  Phase phase() const { return phase_; }
  // Id of the current or next checkpoint.
  uint64_t id() const { return next_id_; }
  // True if servers should send heartbeats often.
  bool hastens() const { return phase_ != Phase::kIdle && (phase_ < Phase::kWriting || requested_ >= next_id_); }
  // True if no data may be handed out.
  bool holds() const { return phase_ == Phase::kDraining || phase_ == Phase::kCapturing; }

  // Makes a checkpoint due now, and returns its id: the current one, if its state may still be captured.
  uint64_t Request();
  // True if that checkpoint or a later one was requested.
  bool requested(uint64_t id) const { return id <= requested_; }

  // Announces a checkpoint that is due; begins to drain once every server has sent a heartbeat since.
  void OnHeartbeat(uint32_t server, absl::Time now);

  // Call once no data is held. `manifest` has everything except the files and the id.
  void Capture(internal::v1::CheckpointManifest manifest, absl::Time now);

  // Takes a server's report on its part; ignores reports on other checkpoints. Returns why the checkpoint has failed,
  // or nothing.
  std::optional<std::string> Report(uint32_t server, const v1::CheckpointPart& part, absl::Time now);

  // When the capture of the current checkpoint began, and when it was complete, so that changes went on. Valid from
  // kWriting on.
  absl::Time capturing() const { return capturing_; }
  absl::Time captured() const { return captured_; }

  // In kCommitting: the manifest to commit.
  const internal::v1::CheckpointManifest& manifest() const { return manifest_; }

  // Returns an error that names what has exceeded this phase's limit, or nothing.
  std::optional<std::string> Overdue(absl::Time now) const;

  // Names the servers whose part of this phase is not done.
  std::string WaitedFor() const;

  // Ends the current checkpoint, committed or abandoned; the next is due after the interval, or now if it was
  // requested.
  void End(absl::Time now);

 private:
  void Enter(Phase phase, absl::Time now);
  bool All() const;

  const Options options_;
  Phase phase_ = Phase::kIdle;
  absl::Time entered_;
  absl::Time capturing_, captured_;
  absl::Time due_;
  uint64_t next_id_;
  // The last checkpoint requested; 0: none.
  uint64_t requested_ = 0;
  // Servers, by rank, that have done their part of this phase.
  std::vector<bool> done_;
  internal::v1::CheckpointManifest manifest_;
};

// Decides when a job takes checkpoints, which are taken between leases of data with the help of every server: at an
// interval, on request, and once at the end of the job. Owns their plan and the outcome of the last one. Programs that
// bring their own data know when they are between two steps: there is no interval, and nothing holds them.
// Invariant: data is held back only while a checkpoint needs that, and for kMaxHeld after one that precedes a stop.
// Deliberately does not know what an event means to the job. Thread safety: none; the coordinator guards it.
class CheckpointControl {
 public:
  // An order in a HeartbeatReply.
  struct Order {
    bool heartbeat_now = false;
    uint64_t capture_checkpoint_id = 0;
  };
  // Time for which the job hands out no data after a checkpoint that precedes a stop.
  static constexpr absl::Duration kMaxHeld = absl::Minutes(1);

  // All arguments must outlive this.
  CheckpointControl(const JobOptions& options, const Membership* members, JobStatus* status,
                    const ServerControl* servers, WorkerControl* workers)
      : options_(options), members_(*members), status_(*status), servers_(*servers), workers_(*workers) {}

  // Follows the state of the job: plans checkpoints once it runs, and the last one once it has finished.
  void Update(absl::Time now);
  // Takes a server's report on its part and advances the current checkpoint.
  Order OnHeartbeat(uint32_t server, const v1::CheckpointPart& part, absl::Time now);
  // See CoordinatorService.SaveCheckpoint.
  v1::SaveCheckpointResponse Save(const v1::SaveCheckpointRequest& request);

  // Returns the manifest of a checkpoint to commit, after which OnCommit or RetryCommit must follow.
  std::optional<internal::v1::CheckpointManifest> TakeCommit();
  void OnCommit(uint64_t checkpoint, const absl::Status& committed, absl::Time now);
  void RetryCommit() { committing_ = false; }

  // Interval at which the job takes checkpoints; zero if it takes none, or only on request.
  absl::Duration interval() const;

  // Fills in the newest complete checkpoint, of progress or of the state to save.
  template <typename Message>
  void Fill(Message& message) const {
    if (newest_.unix_seconds() > 0) *message.mutable_last_checkpoint() = newest_;
  }
  void Restore(const internal::v1::CoordinatorState& state) { newest_ = state.last_checkpoint(); }

 private:
  absl::Duration Interval() const;
  // Returns why the job takes no checkpoint now; empty if it does.
  std::string Obstacle() const;
  // Hands out data again.
  void Release();
  // Ends the current checkpoint, committed or with the reason of its failure.
  void End(const std::string& failure, absl::Time now);
  internal::v1::CheckpointManifest MakeManifest(absl::Time now);

  const JobOptions& options_;
  const Membership& members_;
  JobStatus& status_;
  const ServerControl& servers_;
  WorkerControl& workers_;
  // Set once the job runs, if it takes checkpoints.
  std::optional<CheckpointPlan> plan_;
  bool committing_ = false;
  // Position of the checkpoint being taken, and outcome of the last one.
  v1::SaveCheckpointResponse current_;
  v1::SaveCheckpointResponse last_;
  // Unset before the first complete one.
  v1::JobProgress::Checkpoint newest_;
  // The checkpoint after the last lease of the job; 0: not planned yet.
  uint64_t final_id_ = 0;
  // The checkpoint after which data is held back; 0: none. From its capture on, until this time.
  uint64_t stop_id_ = 0;
  absl::Time held_until_ = absl::InfiniteFuture();
};

}  // namespace ballast
