// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/memory/byte_budget.h"
#include "server/tables/range/page_arena.h"

namespace ballast {

// Owns the memory of a shard's tables, and counts it in the budget that they share with tensors. A push reserves room
// for its new rows first, so the arena itself has no limit. Thread safety: all methods may be called from any thread.
class TableMemory {
 public:
  // `budget` outlives this.
  explicit TableMemory(ByteBudget* budget) : budget_(budget) {}

  PageArena& arena() { return arena_; }
  ByteBudget& budget() { return *budget_; }

  // Counts the segments that were taken since the last call, and the growth of memory besides them.
  void Count(int64_t side_bytes = 0) {
    absl::MutexLock lock(&mutex_);
    side_bytes_ += side_bytes;
    const uint64_t bytes = arena_.segment_bytes() + side_bytes_;
    if (bytes <= counted_) return;
    held_.Add(budget_->Count(bytes - counted_));
    counted_ = bytes;
  }

 private:
  ByteBudget* const budget_;
  PageArena arena_{std::numeric_limits<uint64_t>::max()};
  absl::Mutex mutex_;
  ByteBudget::Reservation held_ ABSL_GUARDED_BY(mutex_);
  uint64_t counted_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t side_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ballast
