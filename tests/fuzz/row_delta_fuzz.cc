// SPDX-License-Identifier: Apache-2.0
// Deltas of rows on their way into a watcher's copy: each is rejected, and its range forgotten, or it is an update of
// exactly the rows that it names.
#include <cstring>
#include <map>

#include "ballast/v1/parameter_service.pb.h"
#include "client/rows/row_delta_reader.h"
#include "common/tables/row_chain.h"
#include "common/tables/row_hash.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {
namespace {

constexpr uint32_t kTable = 1;
constexpr uint32_t kDim = 2;
constexpr int kRangeBits = 6;
constexpr uint32_t kFirst = 8;
constexpr uint32_t kCount = 48;

v1::TableSpec Spec() {
  v1::TableSpec spec;
  spec.set_id(kTable);
  spec.set_name("rows");
  spec.set_dim(kDim);
  spec.set_range_bits(kRangeBits);
  return spec;
}

// An id of that range, of which there are many: number `n`.
uint64_t IdOf(uint32_t range, uint64_t n) { return RowIdOf((uint64_t{range} << (64 - kRangeBits)) + n, kTable); }

std::map<uint32_t, v1::RangePosition> PositionsOf(const RowDeltaReader& reader) {
  std::map<uint32_t, v1::RangePosition> positions;
  for (const v1::RangePosition& position : reader.positions()) positions[position.range()] = position;
  return positions;
}

void CheckUpdate(const RangeUpdate& update, const v1::RowDelta& last) {
  Require(update.range == last.range() && update.range >= kFirst && update.range - kFirst < kCount, "its range");
  Require(update.replaces == (last.from_position() == 0), "a delta from 0 replaces");
  Require(update.values.size() == update.ids.size() * kDim, "each row has its values");
  uint64_t before = 0;
  for (size_t i = 0; i < update.ids.size(); ++i) {
    const uint64_t hash = RowHash(update.ids[i], kTable);
    Require(RangeOf(hash, kRangeBits) == update.range, "rows are in the range");
    Require(i == 0 || hash > before, "rows ascend");
    before = hash;
  }
  for (uint64_t id : update.evicted) {
    Require(RangeOf(RowHash(id, kTable), kRangeBits) == update.range, "evicted rows are in the range");
  }
}

std::string Seed(bool sign, bool damage) {
  v1::WatchRowsResponse response;
  for (uint64_t position = 1; position <= 3; ++position) {
    v1::RowDelta& delta = *response.add_deltas();
    delta.set_table_id(kTable);
    delta.set_range(9);
    delta.set_from_position(position - 1);
    delta.set_to_position(position);
    delta.set_encoding(position == 2 ? v1::ENCODING_BF16 : v1::ENCODING_FP32);
    delta.set_continues(damage && position == 1);
    for (uint64_t n : {1, 5}) {
      const uint64_t id = IdOf(9, n);
      delta.mutable_ids()->append(reinterpret_cast<const char*>(&id), sizeof(id));
    }
    const uint64_t evicted = IdOf(9, 7);
    delta.set_evicted(reinterpret_cast<const char*>(&evicted), sizeof(evicted));
    delta.set_payload(std::string(2 * kDim * (position == 2 ? 2 : 4), '\x3f'));
  }
  return std::string(1, sign ? '\1' : '\0') + response.SerializeAsString();
}

}  // namespace

std::vector<std::string> FuzzSeeds() { return {Seed(true, false), Seed(true, true), Seed(false, false)}; }

void FuzzOne(FuzzInput input) {
  // With chains as a sender would have them, the other checks are reached.
  const bool sign = input.Byte() % 2 == 1;
  v1::WatchRowsResponse response;
  if (!response.ParseFromArray(input.Rest().data(), static_cast<int>(input.Rest().size()))) return;
  RowDeltaReader reader(Spec(), kFirst, kCount);
  std::map<uint32_t, uint64_t> chains;
  for (v1::RowDelta& delta : *response.mutable_deltas()) {
    std::map<uint32_t, v1::RangePosition> before = PositionsOf(reader);
    if (sign) {
      uint64_t& chain = chains[delta.range()];
      if (delta.from_position() == 0 && before.count(delta.range()) > 0) chain = 0;
      chain = NextRowChain(chain, delta.ids(), delta.evicted(), delta.payload());
      delta.set_chain(chain);
    }
    const absl::StatusOr<std::optional<RangeUpdate>> update = reader.Take(delta);
    std::map<uint32_t, v1::RangePosition> after = PositionsOf(reader);
    if (!update.ok()) {
      Require(after.count(delta.range()) == 0 || delta.table_id() != kTable, "a range with a wrong delta is forgotten");
      chains[delta.range()] = 0;
    } else if (update->has_value()) {
      CheckUpdate(**update, delta);
      Require(delta.from_position() == 0 || before[delta.range()].position() == delta.from_position(), "no gap");
      Require(after[delta.range()].position() == delta.to_position(), "the delta leads on");
      Require(after[delta.range()].chain() == delta.chain(), "with its chain");
    }
    before.erase(delta.range());
    after.erase(delta.range());
    Require(before.size() == after.size(), "other ranges stay");
  }
  reader.EndStream();
  Require(PositionsOf(reader).size() <= reader.received(), "a range with a position was received");
}

}  // namespace ballast
