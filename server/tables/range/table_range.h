// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/tables/range/range_capture.h"
#include "server/tables/range/row_batch.h"
#include "server/tables/range/row_index.h"
#include "server/tables/range/row_layout.h"
#include "server/tables/range/row_segments.h"

namespace ballast {

// One row as ForEachRow shows it. The numbers are valid during the call.
struct RowView {
  uint64_t hash = 0;
  absl::Span<const float> weights;
  absl::Span<const float> slots;
  RowState state;
};

// Owns the rows of one range of a table, with their lock. Rows are visited in groups of 16, so that the cache misses of
// a group overlap. Deliberately does not know the other ranges. Thread safety: all methods may be called from any
// thread; pulls of the same range run at the same time, pushes one after the other.
class TableRange {
 public:
  // `arena` must outlive the range.
  TableRange(PageArena* arena, const RowLayout& layout, int range_bits)
      : layout_(layout), index_(arena, range_bits), rows_(arena, layout) {}

  // Reads rows of this range. Creates nothing.
  void Pull(const BatchPull& pull) const;

  // See SparseTable.
  uint64_t CountMissing(absl::Span<const uint64_t> hashes) const;
  uint64_t ReserveOrder() { return next_order_.fetch_add(1, std::memory_order_relaxed); }

  // Updates rows of this range, and creates those that are missing. With a place, waits for the changes before it.
  BatchOutcome Push(const BatchPush& push);

  // Makes room in the index for that many rows in total, if there is memory. Whoever inserts a whole range in several
  // pushes, ascending, calls it first.
  void Reserve(uint64_t rows);

  // Removes a row. False if it was missing.
  bool Erase(uint64_t hash);

  // Calls `visitor` for each row, ascending by hash, under the lock: it must neither block nor use the table.
  void ForEachRow(absl::FunctionRef<void(const RowView&)> visitor) const;

  // Keeps the rows as they are now in `capture` until EndCapture, which returns them, or DropCapture. The capture must
  // not be used otherwise meanwhile.
  void BeginCapture(RangeCapture* capture);
  RowImages EndCapture(RangeCapture* capture);
  void DropCapture(RangeCapture* capture);

  // Adds rows of this range; the hashes ascend. `images`: RowLayout::image_words() words each. Returns the number of
  // rows added: fewer if one existed, which stays as it is, or if there is no memory.
  size_t Restore(absl::Span<const uint64_t> hashes, const char* images);

  uint64_t rows() const;
  // Bytes of index, rows and this object.
  uint64_t memory_bytes() const;

  // Prefetches this object itself, so that the next call finds it in the cache.
  void Prefetch() const;

 private:
  // Most rows visited at once.
  static constexpr size_t kGroup = 16;

  struct Group {
    uint32_t places[kGroup];
    float* rows[kGroup];
  };

  // Finds rows and prefetches them. A missing row has no address.
  void FindLocked(absl::Span<const uint64_t> hashes, Group& group) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void PullGroupLocked(const BatchPull& pull, size_t begin, size_t count) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void PushGroupLocked(const BatchPush& push, size_t begin, size_t count, BatchOutcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes room in the index for the missing ones of the hashes, if there is memory.
  void ReserveMissingLocked(absl::Span<const uint64_t> hashes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Creates the row, with undefined contents; nullptr if there is no memory.
  float* CreateLocked(uint64_t hash) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets the captures keep the row at that place, which is about to change.
  void KeepLocked(uint64_t hash, uint32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RowLayout layout_;
  std::atomic<uint64_t> next_order_{0};
  mutable absl::Mutex mutex_;
  // Number of ordered changes made.
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  RowIndex index_ ABSL_GUARDED_BY(mutex_);
  RowSegments rows_ ABSL_GUARDED_BY(mutex_);
  // Captures that have not read this range yet.
  std::vector<RangeCapture*> captures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
