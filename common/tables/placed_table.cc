// SPDX-License-Identifier: Apache-2.0
#include "common/tables/placed_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/tables/table_spec.h"

namespace ballast {
namespace {

void AddSpan(const RangeSpan& span, v1::PlacedTable& table) {
  v1::RangeSpan* const to = table.add_spans();
  to->set_first(span.first);
  to->set_count(span.count);
  to->set_shard(span.shard);
}

absl::Status CheckCover(const PlacedTable& table, size_t shards) {
  const auto invalid = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("shard map: table \"", table.spec.name(), "\": ", what...));
  };
  const uint32_t ranges = RangeCount(table.spec);
  uint32_t next = 0;
  for (const RangeSpan& span : table.spans) {
    if (span.first != next || span.count == 0 || span.count > ranges - next) {
      return invalid("got ", span.count, " ranges from ", span.first, ", want at least 1 from ", next, " within ",
                     ranges);
    }
    if (span.shard >= shards) return invalid("range ", span.first, " is on shard ", span.shard, " of ", shards);
    next += span.count;
  }
  return next == ranges ? absl::OkStatus() : invalid("got spans of ", next, " ranges, want ", ranges);
}

}  // namespace

uint32_t PlacedTable::OwnerOf(uint32_t range) const {
  const auto after = std::upper_bound(spans.begin(), spans.end(), range,
                                      [](uint32_t one, const RangeSpan& span) { return one < span.first; });
  return std::prev(after)->shard;
}

PlacedTable SpreadRanges(const v1::TableSpec& spec, uint32_t shards) {
  const uint64_t ranges = RangeCount(spec);
  PlacedTable table{spec, {}};
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const auto first = static_cast<uint32_t>(ranges * shard / shards);
    const auto end = static_cast<uint32_t>(ranges * (shard + 1) / shards);
    if (end > first) table.spans.push_back({first, end - first, shard});
  }
  return table;
}

absl::StatusOr<PlacedTable> ReadPlacedTable(const v1::PlacedTable& proto, size_t shards) {
  if (absl::Status status = ValidateTableSpec(proto.spec()); !status.ok()) return status;
  PlacedTable table{proto.spec(), {}};
  for (const v1::RangeSpan& span : proto.spans()) table.spans.push_back({span.first(), span.count(), span.shard()});
  if (absl::Status status = CheckCover(table, shards); !status.ok()) return status;
  return table;
}

v1::PlacedTable ToProto(const PlacedTable& table) {
  v1::PlacedTable proto;
  *proto.mutable_spec() = table.spec;
  for (const RangeSpan& span : table.spans) AddSpan(span, proto);
  return proto;
}

v1::PlacedTable PartOfShard(const PlacedTable& table, uint32_t shard) {
  v1::PlacedTable part;
  *part.mutable_spec() = table.spec;
  for (const RangeSpan& span : table.spans) {
    if (span.shard == shard) AddSpan(span, part);
  }
  return part;
}

}  // namespace ballast
