// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// The report of a server or a standby on its peer.
struct ReplicationReport {
  // A server's report on its standby.
  v1::StandbyReport standby;
  // A standby's report that the stream from its server has ended or timed out.
  bool server_lost = false;
};

// Owns the state of each shard's standby. A standby may take over only if its server has reported it in step and not
// reported otherwise since: such a server acknowledges nothing that the standby does not have. Invariant: a standby
// that was lost or has taken over never may again. Knows nothing of members and addresses.
// Thread safety: none; the coordinator guards it.
class StandbyTable {
 public:
  explicit StandbyTable(uint32_t shards) : shards_(shards), reports_(shards) {}

  // The standby follows from now on; it has no data yet.
  void Follow(uint32_t rank, uint64_t standby);
  // The standby no longer follows; ignored if it did not.
  void Lose(uint32_t rank, uint64_t standby);
  // Takes a report of the shard's server; returns true if it changed anything.
  bool Report(uint32_t rank, const v1::StandbyReport& report);
  // The following standby has become the server with that incarnation.
  void Promote(uint32_t rank, uint64_t server);

  // The last report of the shard's server on the standby that follows.
  const v1::StandbyReport& last_report(uint32_t rank) const { return reports_[rank]; }

  // Incarnation of the standby that follows, and of the one that may take over; 0: none.
  uint64_t follower(uint32_t rank) const { return shards_[rank].incarnation(); }
  uint64_t ready(uint32_t rank) const { return shards_[rank].in_step() ? shards_[rank].incarnation() : 0; }
  // The server incarnation that this standby has become, if it has.
  std::optional<uint64_t> PromotedTo(uint32_t rank, uint64_t standby) const;

  std::vector<internal::v1::StandbyState> Export() const { return shards_; }
  // INVALID_ARGUMENT for another number of shards.
  absl::Status Restore(std::vector<internal::v1::StandbyState> shards);

 private:
  // By rank.
  std::vector<internal::v1::StandbyState> shards_;
  // By rank; not saved, because servers report again.
  std::vector<v1::StandbyReport> reports_;
};

}  // namespace ballast
