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

// A job whose rows are scaled by the staleness of their table.
inline JobConfig ScaledJob(v1::Durability::Mode mode = v1::Durability::WAL) {
  JobConfig job = Job(mode);
  job.policy.mutable_async()->set_scale_by_staleness(true);
  job.policy.mutable_async()->set_staleness_of(v1::ConsistencyPolicy::TABLE);
  return job;
}

// A push of a gradient of `value` for those of the ids [0, ids) that a shard owns.
struct PushOfRows {
  uint64_t ids = 0;
  float value = 0;
  uint64_t sequence = 0;
  uint32_t rank = 0, shards = 1, worker = 0;
  uint64_t incarnation = 1;
  std::optional<uint64_t> clock = std::nullopt;
};
inline absl::StatusOr<PushOutcome> PushRows(ParameterShard& shard, const PushOfRows& push) {
  const PlacedTable placed = SpreadRanges(PartOf(0, 1).spec, push.shards);
  std::vector<uint64_t> own;
  for (uint64_t id = 0; id < push.ids; ++id) {
    if (placed.OwnerOf(RangeOf(RowHash(id, kTable), 12)) == push.rank) own.push_back(id);
  }
  const std::vector<float> gradients(own.size() * 3, push.value);
  const absl::string_view payload = BytesOf(gradients);
  RowGradientsView view{kTable,
                        {reinterpret_cast<const char*>(own.data()), own.size() * sizeof(uint64_t)},
                        /*unordered=*/true,
                        {},
                        v1::ENCODING_FP32,
                        {&payload, 1}};
  view.clock = push.clock;
  return shard.PushRows("job", {push.worker, push.incarnation, push.sequence, push.sequence - 1, 1, std::nullopt},
                        /*messages_of_step=*/1, {view});
}
inline absl::StatusOr<PushOutcome> PushRows(ParameterShard& shard, uint64_t ids, float value, uint64_t sequence,
                                            uint32_t rank = 0, uint32_t shards = 1, uint32_t worker = 0) {
  return PushRows(shard, {ids, value, sequence, rank, shards, worker});
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
