// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/tables/range/evicted_hashes.h"
#include "server/tables/range/range_capture.h"
#include "server/tables/range/range_changes.h"
#include "server/tables/range/row_batch.h"
#include "server/tables/range/row_index.h"
#include "server/tables/range/row_layout.h"
#include "server/tables/range/row_rules.h"
#include "server/tables/range/row_segments.h"
#include "server/tables/range/use_counts.h"

namespace ballast {

// One row as ForEachRow shows it. The numbers are valid during the call.
struct RowView {
  uint64_t hash = 0;
  absl::Span<const float> weights;
  absl::Span<const float> slots;
  RowState state;
};

// Some rows of a message in one range, and where a visit finds them.
struct RowGroup {
  static constexpr size_t kMost = 16;

  // Rows [begin, begin + count) of the message.
  size_t begin = 0;
  size_t count = 0;
  const RowIndex::Line* homes[kMost];
  uint32_t places[kMost];
  // A missing row has no address.
  float* rows[kMost];
};

// Owns the rows of one range of a table, with their lock. A message visits rows in groups, in three steps, so that the
// cache misses of several groups overlap: Prefetch loads the index, Find the rows, and Pull or Push uses them.
// Deliberately does not know the other ranges. Size: whatever reads or changes rows does so under the one lock. Thread
// safety: all methods may be called from any thread; pulls of the same range run at the same time, pushes one after the
// other.
class TableRange {
 public:
  // `arena` must outlive the range. `stagger`: see RowIndex.
  TableRange(PageArena* arena, const RowLayout& layout, int range_bits, float stagger, const RowRules& rules = {});

  // Begin and end a visit that reads rows.
  void EnterPull() const ABSL_SHARED_LOCK_FUNCTION(mutex_) { mutex_.ReaderLock(); }
  void LeavePull() const ABSL_UNLOCK_FUNCTION(mutex_) { mutex_.ReaderUnlock(); }
  // Reads the rows of a group. Creates nothing.
  void Pull(const BatchPull& pull, const RowGroup& group) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // Waits for the changes before this place. A caller that holds another range's lock could wait for itself: what is
  // before it may wait for a pull, and that for the lock.
  void AwaitTurn(uint64_t place) const;

  // Begin and end a visit that updates rows of this range, those with the given hashes. The end of the visit evicts
  // rows above the range's budget; if the change is `ordered`, whose turn it must be, it lets the next one have its
  // turn.
  void EnterPush(absl::Span<const uint64_t> hashes, const RowTime& time, BatchOutcome& outcome)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex_);
  void LeavePush(bool ordered, const RowTime& time, BatchOutcome& outcome) ABSL_UNLOCK_FUNCTION(mutex_);
  // Updates the rows of a group, and creates those that are missing and admitted.
  void Push(const BatchPush& push, RowGroup& group, BatchOutcome& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The first steps of a group's visit. `hashes`: those of the group.
  void Prefetch(absl::Span<const uint64_t> hashes, RowGroup& group) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    index_.Prefetch(hashes, group.homes);
  }
  void Find(absl::Span<const uint64_t> hashes, RowGroup& group, bool to_change = false) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // Removes the rows that have expired, which nobody but memory, captures and followers can tell; returns their number.
  uint64_t Sweep(const RowTime& time);

  // See SparseTable.
  uint64_t CountMissing(absl::Span<const uint64_t> hashes) const;
  uint64_t ReserveOrder() { return next_order_.fetch_add(1, std::memory_order_relaxed); }

  // Makes room in the index for that many rows in total, if there is memory. Whoever inserts a whole range in several
  // pushes, ascending, calls it first.
  void Reserve(uint64_t rows);

  // Removes a row. False if it was missing.
  bool Erase(uint64_t hash);

  // Calls `visitor` for each row, ascending by hash, under the lock: it must neither block nor use the table.
  void ForEachRow(absl::FunctionRef<void(const RowView&)> visitor) const;

  // Keeps the rows as they are now in `capture` until EndCapture, which returns them, or DropCapture. The capture must
  // not be used otherwise meanwhile.
  // With `since`, takes the changes out of it and keeps only the rows that they name; the range must follow it.
  void BeginCapture(RangeCapture* capture, RangeChanges* since = nullptr);
  RowImages EndCapture(RangeCapture* capture);
  void DropCapture(RangeCapture* capture);

  // Notes in `changes` each row that changes from now on, until Unfollow. It must not be used otherwise meanwhile.
  void Follow(RangeChanges* changes);
  void Unfollow(RangeChanges* changes);
  // Takes the changes out of `changes` and returns the rows as they are now.
  RowImages TakeChanges(RangeChanges* changes);
  // Number of changes that a follower has noted.
  size_t CountChanges(const RangeChanges& changes) const;
  // Takes the changes, if not null, and returns the weights of their rows as they are now. Sets `all`, if not null, to
  // the weights of all rows at the same moment.
  RowWeights TakeWeights(RangeChanges* changes, RowWeights* all = nullptr);

  // Adds rows of this range; the hashes ascend. `images`: RowLayout::image_words() words each. Returns the number of
  // rows added: fewer if there is no memory, or if one existed, which stays as it is unless `replace`.
  size_t Restore(absl::Span<const uint64_t> hashes, const char* images, bool replace);
  // Continues the counts of uses of a capture; see UseCounts.
  absl::Status RestoreUses(absl::string_view uses);

  uint64_t rows() const;
  // Rows that can begin without more memory, besides that of the index.
  uint64_t free_places() const;
  // Bytes of index, rows and this object.
  uint64_t memory_bytes() const;
  // Ids whose uses are counted.
  uint64_t waiting() const;
  void CountWaiting(std::vector<uint64_t>& by_uses) const;

  // Prefetches this object itself, so that the next call finds it in the cache.
  void Prefetch() const;

 private:
  // Makes room in the index for the missing ones of the hashes, if there is memory; first by removing expired rows.
  void ReserveMissingLocked(absl::Span<const uint64_t> hashes, const RowTime& time, BatchOutcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if the id may have a row, after these uses.
  bool AdmitLocked(const BatchPush& push, size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Address of the row to begin for an id, in place of the expired one if there is one; nullptr if it is not admitted
  // or there is no memory. The floats are initial, the state is new.
  float* BeginLocked(const BatchPush& push, size_t at, float* expired, uint32_t place, BatchOutcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t SweepLocked(const RowTime& time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Evicts the rows that the range has no budget for.
  void EvictLocked(const RowTime& time, BatchOutcome& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes a row by a rule.
  void RemoveByRuleLocked(const RowIndex::Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t SideBytesLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Creates the row, with undefined contents; nullptr if there is no memory. The index must not grow during a visit, so
  // there must be room in it.
  float* CreateLocked(uint64_t hash) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets the captures keep the row at that place, which is about to change or to be removed.
  void KeepLocked(uint64_t hash, uint32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Like KeepLocked, and tells the followers that the row changes.
  void ChangeLocked(uint64_t hash, uint32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Appends the row at that place.
  void CopyWeightsLocked(uint64_t hash, uint32_t place, RowWeights& to) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Removes a row, whose place is in the index no longer.
  void RemoveLocked(uint64_t hash, uint32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RowLayout layout_;
  const RowRules rules_;
  const int range_bits_;
  std::atomic<uint64_t> next_order_{0};
  mutable absl::Mutex mutex_;
  // Number of ordered changes made.
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  RowIndex index_ ABSL_GUARDED_BY(mutex_);
  RowSegments rows_ ABSL_GUARDED_BY(mutex_);
  // Captures that have not read this range yet.
  std::vector<RangeCapture*> captures_ ABSL_GUARDED_BY(mutex_);
  std::vector<RangeChanges*> followers_ ABSL_GUARDED_BY(mutex_);
  EvictedHashes evicted_ ABSL_GUARDED_BY(mutex_);
  // Null if every id is admitted at its first use.
  std::unique_ptr<UseCounts> uses_ ABSL_GUARDED_BY(mutex_);
  uint64_t side_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ballast
