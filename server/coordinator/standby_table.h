// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// Which standby may take a shard over. Only one that its server said to be in step may, for as long as the server has
// not said otherwise: such a server acknowledges nothing that the standby does not have.
// Invariant: a standby that was lost, or has taken over, never may again. Knows nothing of members and addresses.
// Thread safety: none; the coordinator guards it.
class StandbyTable {
 public:
  explicit StandbyTable(uint32_t shards) : shards_(shards), reports_(shards) {}

  // From now on this one follows; it has nothing yet.
  void Follow(uint32_t rank, uint64_t standby);
  // It does not any more; nothing for one that does not follow.
  void Lose(uint32_t rank, uint64_t standby);
  // What the shard's server says; whether that changed anything.
  bool Report(uint32_t rank, const v1::StandbyReport& report);
  // The one that follows has become the server with that incarnation.
  void Promote(uint32_t rank, uint64_t server);

  // What the shard's server said last; a standby that follows is the one that it is about.
  const v1::StandbyReport& last_report(uint32_t rank) const { return reports_[rank]; }

  // Incarnation of the standby that follows, of the one that may take over; 0: none.
  uint64_t follower(uint32_t rank) const { return shards_[rank].incarnation(); }
  uint64_t ready(uint32_t rank) const { return shards_[rank].in_step() ? shards_[rank].incarnation() : 0; }
  // The server's incarnation that this standby has become.
  std::optional<uint64_t> PromotedTo(uint32_t rank, uint64_t standby) const;

  std::vector<internal::v1::StandbyState> Export() const { return shards_; }
  // INVALID_ARGUMENT for another number of shards.
  absl::Status Restore(std::vector<internal::v1::StandbyState> shards);

 private:
  // By rank.
  std::vector<internal::v1::StandbyState> shards_;
  // By rank; not part of the state that is saved, for a server says it again.
  std::vector<v1::StandbyReport> reports_;
};

}  // namespace ballast
