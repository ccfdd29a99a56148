// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/tables/row_uses.h"

#include <cmath>
#include <limits>

#include "common/codecs/codec.h"
#include "common/tables/row_hash.h"
#include "common/tables/table_spec.h"
#include "common/tables/table_spec_fixture.h"

namespace ballast {
namespace {

// Uses of a small push in the table of 1 weight, and in the other.
constexpr uint32_t kUses[] = {256, 64};
constexpr uint32_t kLargeEvery = 8, kLargeTimes = 8;
// The frequent rows change after this many pushes.
constexpr uint64_t kDriftEvery = 64, kDriftRows = 977;
// Numbers that tell the draws of rows from those of marks.
constexpr uint64_t kDraw = 1, kMark = 2, kRow = 3;

}  // namespace

std::vector<v1::TableSpec> CountingTables() { return {SgdTable(1, "count1", 1), SgdTable(2, "count16", 16)}; }

RowDraw::RowDraw(uint64_t seed, uint32_t rows, uint32_t servers) : seed_(seed), rows_(rows), servers_(servers) {
  for (const v1::TableSpec& spec : CountingTables()) tables_.push_back(SpreadRanges(spec, servers));
}

uint64_t RowDraw::IdOf(uint32_t row) {
  if (row == 0) return 0;
  if (row == 1) return std::numeric_limits<uint64_t>::max();
  return CodecSeed({kRow, row});
}

RowUses RowDraw::Uses(const PushKey& key) const {
  RowUses uses(tables_.size());
  const uint64_t drift = key.number / kDriftEvery * kDriftRows;
  const double log_rows = std::log(static_cast<double>(rows_) + 1);
  for (size_t table = 0; table < uses.size(); ++table) {
    const uint32_t count = kUses[table] * (key.number % kLargeEvery == 0 ? kLargeTimes : 1);
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t bits = CodecSeed({kDraw, seed_, key.worker, key.life, key.number, table, i});
      // In [0, 1).
      const double share = static_cast<double>(bits >> 11) * 0x1p-53;
      const uint64_t rank = static_cast<uint64_t>(std::exp(share * log_rows)) - 1;
      uses[table].push_back(IdOf(static_cast<uint32_t>((rank + drift) % rows_)));
    }
  }
  return uses;
}

uint64_t RowDraw::MarkOf(const PushKey& key, uint32_t server) const {
  for (uint64_t attempt = 0;; ++attempt) {
    const uint64_t id = CodecSeed({kMark, seed_, key.worker, key.life, key.number, attempt});
    if (OwnerOf(0, id) == server) return id;
  }
}

void RowDraw::Mark(const PushKey& key, RowUses& uses) const {
  for (uint32_t server = 0; server < servers_; ++server) uses[0].push_back(MarkOf(key, server));
}

RowUses RowDraw::OnServer(const RowUses& uses, uint32_t server) const {
  RowUses part(uses.size());
  for (size_t table = 0; table < uses.size(); ++table) {
    for (const uint64_t id : uses[table]) {
      if (OwnerOf(table, id) == server) part[table].push_back(id);
    }
  }
  return part;
}

uint32_t RowDraw::OwnerOf(size_t table, uint64_t id) const {
  const v1::TableSpec& spec = tables_[table].spec;
  return tables_[table].OwnerOf(RangeOf(RowHash(id, spec.id()), static_cast<int>(RangeBits(spec))));
}

}  // namespace ballast
