// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "ballast/internal/v1/checkpoint.pb.h"
#include "ballast/v1/coordinator_service.pb.h"

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
      : options_(options), due_(now + options.interval), next_id_(options.first_id) {}

  Phase phase() const { return phase_; }
  // Id of the current or next checkpoint.
  uint64_t id() const { return next_id_; }
  // True if servers should send heartbeats often.
  bool hastens() const { return phase_ != Phase::kIdle && phase_ < Phase::kWriting; }
  // True if no data may be handed out.
  bool holds() const { return phase_ == Phase::kDraining || phase_ == Phase::kCapturing; }

  // Announces a checkpoint that is due; begins to drain once every server has sent a heartbeat since.
  void OnHeartbeat(uint32_t server, absl::Time now);

  // Call once no data is held. `manifest` has everything except the files and the id.
  void Capture(internal::v1::CheckpointManifest manifest, absl::Time now);

  // Takes a server's report on its part; ignores reports on other checkpoints. Returns why the checkpoint has failed,
  // or nothing.
  std::optional<std::string> Report(uint32_t server, const v1::CheckpointPart& part, absl::Time now);

  // In kCommitting: the manifest to commit.
  const internal::v1::CheckpointManifest& manifest() const { return manifest_; }

  // Returns an error that names what has exceeded this phase's limit, or nothing.
  std::optional<std::string> Overdue(absl::Time now) const;

  // Ends the current checkpoint, committed or abandoned; the next is due after the interval.
  void End(absl::Time now);

 private:
  void Enter(Phase phase, absl::Time now);
  bool All() const;

  const Options options_;
  Phase phase_ = Phase::kIdle;
  absl::Time entered_;
  absl::Time due_;
  uint64_t next_id_;
  // Servers, by rank, that have done their part of this phase.
  std::vector<bool> done_;
  internal::v1::CheckpointManifest manifest_;
};

}  // namespace ballast
