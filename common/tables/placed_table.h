// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/v1/table.pb.h"

namespace ballast {

// Ranges [first, first + count) of a table, and the rank of the shard that owns them.
struct RangeSpan {
  uint32_t first = 0;
  uint32_t count = 0;
  uint32_t shard = 0;

  bool operator==(const RangeSpan&) const = default;
};

// A table and the owners of its ranges. In a shard map, spans ascend and cover every range once.
struct PlacedTable {
  v1::TableSpec spec;
  std::vector<RangeSpan> spans;

  // Returns the rank of the shard that owns the range; `range` is below RangeCount(spec).
  uint32_t OwnerOf(uint32_t range) const;
};

// Gives shard i of `shards`, at least 1, the i-th of nearly equal parts of the table's ranges. Shards beyond the number
// of ranges get none. The spec must be valid.
PlacedTable SpreadRanges(const v1::TableSpec& spec, uint32_t shards);

// Reads a table of a map with that many shards. INVALID_ARGUMENT names the table and the span that breaks the order, or
// that has an owner beyond the shards, or the ranges that no span covers.
absl::StatusOr<PlacedTable> ReadPlacedTable(const v1::PlacedTable& proto, size_t shards);

v1::PlacedTable ToProto(const PlacedTable& table);

// Returns the table with that shard's spans alone, as a declaration has it.
v1::PlacedTable PartOfShard(const PlacedTable& table, uint32_t shard);

}  // namespace ballast
