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

// When a job's next checkpoint is taken, and how far it is. Servers are first told to call often, so that the workers
// stand still no longer than it takes; then no data is handed out until all of it was reported done; then every shard
// is captured, and training goes on while the shards are written. It knows neither leases nor files.
// Thread safety: none; the coordinator guards it.
class CheckpointPlan {
 public:
  enum class Phase {
    kIdle,
    // Not all servers know yet.
    kAnnounced,
    // No data is handed out until nothing is held.
    kDraining,
    // All stand still until every shard is captured.
    kCapturing,
    // Training goes on; shards are being written.
    kWriting,
    // Every shard's file is on the disk.
    kCommitting,
  };
  struct Options {
    absl::Duration interval;
    uint32_t servers = 1;
    // Of the first one.
    uint64_t first_id = 1;
  };
  // For each phase between the announcement and the capture.
  static constexpr absl::Duration kMostStanding = absl::Seconds(60);
  static constexpr absl::Duration kMostWriting = absl::Minutes(30);

  CheckpointPlan(const Options& options, absl::Time now)
      : options_(options), due_(now + options.interval), next_id_(options.first_id) {}

  Phase phase() const { return phase_; }
  // Of the one that is being taken.
  uint64_t id() const { return next_id_; }
  // Whether servers should call again at once.
  bool hastens() const { return phase_ != Phase::kIdle && phase_ < Phase::kWriting; }
  // Whether no data may be handed out.
  bool holds() const { return phase_ == Phase::kDraining || phase_ == Phase::kCapturing; }

  // A server called. Announces where one is due; drains once all have called since.
  void OnHeartbeat(uint32_t server, absl::Time now);

  // Nothing is held any more. `manifest` says all but files and id.
  void Capture(internal::v1::CheckpointManifest manifest, absl::Time now);

  // What a server says of its part; anything but of the one that is being taken is passed over. Answers why it cannot
  // be done, or nothing.
  std::optional<std::string> Report(uint32_t server, const v1::CheckpointPart& part, absl::Time now);

  // In kCommitting: what is to be committed.
  const internal::v1::CheckpointManifest& manifest() const { return manifest_; }

  // Names who it waits for; nothing while it does not take too long.
  std::optional<std::string> Overdue(absl::Time now) const;

  // Ends the one that is being taken, committed or given up; the next is due in an interval.
  void End(absl::Time now);

 private:
  void Enter(Phase phase, absl::Time now);
  bool All() const;

  const Options options_;
  Phase phase_ = Phase::kIdle;
  absl::Time entered_;
  absl::Time due_;
  uint64_t next_id_;
  // Of this phase, by rank: who has done his part.
  std::vector<bool> done_;
  internal::v1::CheckpointManifest manifest_;
};

}  // namespace ballast
