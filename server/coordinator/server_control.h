// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/tensors/shard_map.h"
#include "server/coordinator/job_status.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/standby_table.h"

namespace ballast {

// Decides which process serves each shard: owns the shard map and the standbys, and lets a standby take over from a
// lost server. Invariant: a standby takes over only if it is in step with its server. Deliberately does not know what
// a loss means without standbys. Thread safety: none; the coordinator guards it.
class ServerControl {
 public:
  // A peer in a HeartbeatReply.
  struct Peer {
    std::optional<Membership::Member> standby;
    std::optional<Membership::Id> promoted;
  };

  // All arguments must outlive this.
  ServerControl(const JobOptions& options, Membership* members, JobStatus* status);

  // Makes every check that may refuse a server at that rank; changes nothing.
  absl::StatusOr<Admission> CheckJoin(const Newcomer& newcomer, std::optional<uint32_t> rank) const;
  // Updates map and standbys for a server or standby that has just joined.
  void OnJoin(const Membership::Id& id, std::string control_address);
  // Handles the report of a server or standby on its peer; with standbys only.
  absl::StatusOr<Peer> OnReport(const Membership::Id& id, const ReplicationReport& report, absl::Time now);

  void LoseStandby(const Membership::Id& id) { standbys_.Lose(id.rank, id.incarnation); }
  // The process of a server has ended, and its state is lost: its standby takes over, or the job fails.
  void LoseServer(uint32_t rank, const std::string& what, absl::Time now);
  // Lets standbys take over from lost servers, which may still be alive, if their own heartbeats are recent.
  void TakeOverSilent(absl::Time now);

  // The errors of ShardMap::Place. All servers must have joined.
  absl::Status Place(absl::Span<const v1::TensorSpec> specs, absl::Span<const v1::TableSpec> tables);
  // Empty before the first placement.
  const ShardMap& placed_map() const { return map_; }
  bool placed() const { return !map_.shards().empty(); }
  // Before the first placement: a map of the servers alone.
  ShardMap shard_map() const;

  const StandbyTable& standbys() const { return standbys_; }
  void Export(internal::v1::CoordinatorState& state) const;
  absl::Status Restore(const internal::v1::CoordinatorState& state);

 private:
  // Returns the standby of that rank if it may become the server now.
  std::optional<Membership::Member> ReadyStandby(uint32_t rank) const;
  // Makes the standby the server if it may; `what` happened to the previous server. Returns true if it did.
  bool TakeOver(uint32_t rank, const std::string& what, absl::Time now);

  const JobOptions& options_;
  Membership& members_;
  JobStatus& status_;
  StandbyTable standbys_;
  ShardMap map_;
  // Shard map of the checkpoint to resume from, if any.
  std::optional<ShardMap> resumed_map_;
};

}  // namespace ballast
