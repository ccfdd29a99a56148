// SPDX-License-Identifier: Apache-2.0
#include "bench/rows/row_store.h"

#include <algorithm>
#include <cmath>
#include <libcuckoo/cuckoohash_map.hh>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "server/tables/range/page_arena.h"
#include "server/tables/range/row_index.h"
#include "server/tables/range/row_segments.h"
#include "server/tables/sparse_table.h"

namespace ballast {
namespace {

constexpr int kRangeBits = 12;
constexpr uint32_t kRanges = 1 << kRangeBits;
// Rows that the optimizer updates in one call.
constexpr size_t kGroup = 16;
constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

class BallastRows : public RowStore {
 public:
  BallastRows(uint64_t presized_rows, int dim) : table_(&arena_, {dim, 1, kRangeBits, 0, kRanges}) {
    if (presized_rows == 0) return;
    // A range has about as many rows as the others; four standard deviations more are enough for nearly all.
    const double mean = static_cast<double>(presized_rows) / kRanges;
    for (uint32_t range = 0; range < kRanges; ++range) table_.Reserve(range, std::ceil(mean + 4 * std::sqrt(mean)));
  }

  void Pull(const BatchPull& pull) override { table_.Pull(pull); }
  void Push(const BatchPush& push) override { table_.Push(push); }
  uint64_t MemoryBytes() const override { return table_.memory_bytes() + arena_.page_bytes() - arena_.segment_bytes(); }

 private:
  PageArena arena_{kNoLimit};
  SparseTable table_;
};

// Adapters of other maps from hashes to places.
class FlatMap {
 public:
  explicit FlatMap(uint64_t rows) { map_.reserve(rows); }
  uint32_t Find(uint64_t hash) const {
    const auto found = map_.find(hash);
    return found == map_.end() ? RowIndex::kNoPlace : found->second;
  }
  void Insert(uint64_t hash, uint32_t place) { map_.emplace(hash, place); }
  // A slot and its control byte.
  uint64_t MemoryBytes() const { return map_.capacity() * (sizeof(std::pair<uint64_t, uint32_t>) + 1); }

 private:
  absl::flat_hash_map<uint64_t, uint32_t> map_;
};

class CuckooMap {
 public:
  explicit CuckooMap(uint64_t rows) : map_(rows) {}
  uint32_t Find(uint64_t hash) const {
    uint32_t place;
    return map_.find(hash, place) ? place : RowIndex::kNoPlace;
  }
  void Insert(uint64_t hash, uint32_t place) { map_.insert(hash, place); }
  // A bucket's slots, each with a partial key and a flag.
  uint64_t MemoryBytes() const { return map_.capacity() * (sizeof(std::pair<uint64_t, uint32_t>) + 2); }

 private:
  libcuckoo::cuckoohash_map<uint64_t, uint32_t> map_;
};

// Our rows behind another map, which is asked for one hash after the other.
template <typename Map>
class RowsBehindMap : public RowStore {
 public:
  RowsBehindMap(uint64_t rows, int dim) : layout_(dim, 1), map_(rows), rows_(&arena_, layout_) {}

  void Pull(const BatchPull& pull) override {
    for (size_t i = 0; i < pull.hashes.size(); ++i) {
      const float* row = rows_.At(map_.Find(pull.hashes[i]));
      std::copy_n(row, layout_.dim(), pull.values + i * layout_.dim());
      pull.versions[i] = layout_.State(row).version;
    }
  }

  void Push(const BatchPush& push) override {
    RowUpdate updates[kGroup];
    for (size_t begin = 0; begin < push.hashes.size(); begin += kGroup) {
      const size_t count = std::min(kGroup, push.hashes.size() - begin);
      for (size_t i = 0; i < count; ++i) {
        float* row = FindOrCreate(push.hashes[begin + i]);
        RowState& state = layout_.State(row);
        state.last_step = push.time.now;
        updates[i] = {row, push.gradients + (begin + i) * layout_.dim(), ++state.version, push.learning_rate};
      }
      push.optimizer->Apply(layout_.dim(), push.gradient_scale, absl::MakeConstSpan(updates, count));
    }
  }

  uint64_t MemoryBytes() const override { return map_.MemoryBytes() + rows_.memory_bytes(); }

 private:
  float* FindOrCreate(uint64_t hash) {
    const uint32_t found = map_.Find(hash);
    if (found != RowIndex::kNoPlace) return rows_.At(found);
    const uint32_t place = rows_.Allocate().value();
    map_.Insert(hash, place);
    std::fill_n(rows_.At(place), layout_.bytes() / sizeof(float), 0.0f);
    return rows_.At(place);
  }

  const RowLayout layout_;
  PageArena arena_{kNoLimit};
  Map map_;
  RowSegments rows_;
};

template <typename Map>
std::unique_ptr<RowStore> MakeRowsBehind(uint64_t rows, int dim) {
  return std::make_unique<RowsBehindMap<Map>>(rows, dim);
}

constexpr RowStoreKind kKinds[] = {
    {"ballast", [](uint64_t, int dim) { return MakeBallastRows(0, dim); }},
    {"absl", MakeRowsBehind<FlatMap>},
    {"libcuckoo", MakeRowsBehind<CuckooMap>},
};

}  // namespace

std::unique_ptr<RowStore> MakeBallastRows(uint64_t presized_rows, int dim) {
  return std::make_unique<BallastRows>(presized_rows, dim);
}

absl::Span<const RowStoreKind> RowStoreKinds() { return kKinds; }

}  // namespace ballast
