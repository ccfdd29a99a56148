// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace ballast {

// Owns the clocks of tables at shards when rows were pulled: steps of workers whose updates are in the values.
// Invariant: if the values of a table came from a shard in several messages, the oldest clock counts. Deliberately does
// not know rows. Thread safety: none.
class RowClocks {
 public:
  void Add(uint32_t table_id, uint32_t shard, uint64_t clock) {
    const auto [known, added] = clocks_.try_emplace({table_id, shard}, clock);
    if (!added) known->second = std::min(known->second, clock);
  }

  void Add(const RowClocks& other) {
    for (const auto& [place, clock] : other.clocks_) Add(place.first, place.second, clock);
  }

  // Not set if no rows of the table were pulled from the shard, or if its policy does not need the clock.
  std::optional<uint64_t> Find(uint32_t table_id, uint32_t shard) const {
    const auto found = clocks_.find({table_id, shard});
    return found == clocks_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  // By table and shard.
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, uint64_t> clocks_;
};

}  // namespace ballast
