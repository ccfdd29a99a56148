// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/standby_table.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {

void StandbyTable::Follow(uint32_t rank, uint64_t standby) {
  shards_[rank].set_incarnation(standby);
  shards_[rank].set_in_step(false);
  reports_[rank].Clear();
}

void StandbyTable::Lose(uint32_t rank, uint64_t standby) {
  if (shards_[rank].incarnation() != standby) return;
  Follow(rank, 0);
}

bool StandbyTable::Report(uint32_t rank, const v1::StandbyReport& report) {
  internal::v1::StandbyState& shard = shards_[rank];
  if (report.incarnation() == 0 || report.incarnation() != shard.incarnation()) return false;
  reports_[rank] = report;
  switch (report.stage()) {
    case v1::StandbyReport::STAGE_IN_STEP:
      if (shard.in_step()) return false;
      shard.set_in_step(true);
      return true;
    case v1::StandbyReport::STAGE_LOST:
      Lose(rank, report.incarnation());
      return true;
    default:
      return false;
  }
}

void StandbyTable::Promote(uint32_t rank, uint64_t server) {
  shards_[rank].set_promoted(shards_[rank].incarnation());
  shards_[rank].set_promoted_to(server);
  Follow(rank, 0);
}

std::optional<uint64_t> StandbyTable::PromotedTo(uint32_t rank, uint64_t standby) const {
  const internal::v1::StandbyState& shard = shards_[rank];
  if (shard.promoted() == 0 || shard.promoted() != standby) return std::nullopt;
  return shard.promoted_to();
}

absl::Status StandbyTable::Restore(std::vector<internal::v1::StandbyState> shards) {
  if (shards.size() != shards_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("saved standbys: got ", shards.size(), ", want one for each of ", shards_.size(), " servers"));
  }
  shards_ = std::move(shards);
  return absl::OkStatus();
}

}  // namespace ballast
