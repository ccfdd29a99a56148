// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/tables/placed_table.h"
#include "common/tables/row_hash.h"
#include "common/tables/table_spec_fixture.h"
#include "server/durability/shard_store_fixture.h"

namespace ballast {

constexpr uint32_t kTable = 100000;

// A table of three weights per row.
inline v1::TableSpec StoredTable() {
  v1::TableSpec spec = SgdTable(kTable, "rows", 3);
  spec.mutable_optimizer()->mutable_adam()->set_learning_rate(0.1f);
  spec.mutable_initializer()->mutable_normal()->set_stddev(1);
  return spec;
}

// The ranges of a table that one of the shards owns.
inline OwnedTable PartOf(uint32_t shard, uint32_t shards, const v1::TableSpec& spec = StoredTable()) {
  OwnedTable table{spec, {}};
  const v1::PlacedTable part = PartOfShard(SpreadRanges(table.spec, shards), shard);
  table.spans.assign(part.spans().begin(), part.spans().end());
  return table;
}

// Pushes a gradient of `value` for those of the ids [0, ids) that the shard owns.
inline absl::StatusOr<PushOutcome> PushRows(ParameterShard& shard, uint64_t ids, float value, uint64_t sequence,
                                            uint32_t rank = 0, uint32_t shards = 1, uint32_t worker = 0) {
  const PlacedTable placed = SpreadRanges(PartOf(0, 1).spec, shards);
  std::vector<uint64_t> own;
  for (uint64_t id = 0; id < ids; ++id) {
    if (placed.OwnerOf(RangeOf(RowHash(id, kTable), 12)) == rank) own.push_back(id);
  }
  const std::vector<float> gradients(own.size() * 3, value);
  const absl::string_view payload = BytesOf(gradients);
  const RowGradientsView view{kTable,
                              {reinterpret_cast<const char*>(own.data()), own.size() * sizeof(uint64_t)},
                              /*unordered=*/true,
                              {},
                              v1::ENCODING_FP32,
                              {&payload, 1}};
  return shard.PushRows("job", {worker, 1, sequence, sequence - 1, 1, std::nullopt}, /*messages_of_step=*/1, {view});
}

// All rows of a shard: hash and image; and the table's clock, as the row of hash 0.
inline std::map<uint64_t, std::string> RowsOf(ParameterShard& shard) {
  std::map<uint64_t, std::string> rows;
  const ShardState capture = shard.Capture([] {});
  for (const ShardState::TableEntry& table : capture.table_entries) {
    rows[0] = absl::StrCat(table.state.clock);
    while (const std::optional<RowsPiece> piece = table.rows->Next()) {
      for (size_t i = 0; i < piece->rows.hashes.size(); ++i) {
        const char* const words = reinterpret_cast<const char*>(piece->rows.words.data());
        rows[piece->rows.hashes[i]] = std::string(words + i * table.rows->row_bytes(), table.rows->row_bytes());
      }
    }
  }
  return rows;
}

}  // namespace ballast
