// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/tables/range/page_arena.h"
#include "server/tables/range/row_batch.h"
#include "server/tables/range/row_layout.h"
#include "server/tables/range/row_rules.h"
#include "server/tables/range/table_range.h"
#include "server/tables/table_capture.h"
#include "server/tables/table_changes.h"

namespace ballast {

struct SparseTableOptions {
  // Weights per row, 1 to 4096, and floats of the optimizer's slots.
  int dim = 0;
  int slot_floats = 0;
  // The whole table has 2^range_bits ranges; 1 to 16.
  int range_bits = 12;
  // Ranges at this shard: [first_range, first_range + range_count).
  uint32_t first_range = 0;
  uint32_t range_count = 0;
  // The rules of each range.
  RowRules rules = {};
};

// Owns the ranges of a table that one shard holds, and leads each hash of a message to its range. A message visits the
// ranges in ascending order and takes each range's lock once, so a message is not one atomic change: another may come
// between two of its ranges. Deliberately does not know ids, messages or other shards. Thread safety: all methods may
// be called from any thread.
class SparseTable {
 public:
  // `arena` must outlive the table; tables may share it.
  SparseTable(PageArena* arena, const SparseTableOptions& options);

  // INVALID_ARGUMENT unless the hashes are strictly ascending and in the ranges of this shard. To be called before Pull
  // and Push, for hashes that come from outside.
  absl::Status CheckHashes(absl::Span<const uint64_t> hashes) const;

  // Reads rows. Creates nothing.
  void Pull(const BatchPull& pull) const;

  // Returns the number of rows that are missing.
  uint64_t CountMissing(absl::Span<const uint64_t> hashes) const;

  // Reserves a push's place in the order of changes of each of its ranges. The push must follow soon, because all later
  // ones wait for it; reservations of several pushes come one after the other.
  std::vector<uint64_t> ReserveOrder(absl::Span<const uint64_t> hashes);

  // Updates rows, and creates those that are missing.
  BatchOutcome Push(const BatchPush& push);

  // Like TableRange::Reserve, for a range of this shard.
  void Reserve(uint32_t range, uint64_t rows);

  // Removes rows that have expired, of range number `index` at this shard; see TableRange.
  uint64_t Sweep(uint32_t index, const RowTime& time) { return ranges_[index]->Sweep(time); }

  // Removes a row of this shard. False if it was missing.
  bool Erase(uint64_t hash);

  // Begins a capture of all ranges of this shard, or of [first, first + count). No push may run meanwhile.
  std::unique_ptr<TableCapture> BeginCapture() const {
    return BeginCapture(options_.first_range, options_.range_count);
  }
  std::unique_ptr<TableCapture> BeginCapture(uint32_t first, uint32_t count) const;

  // Follows all ranges of this shard, for BeginCapture of the changes alone, which it takes out of `since`. No push may
  // run meanwhile. The table outlives both.
  std::unique_ptr<TableChanges> Follow() const;
  std::unique_ptr<TableCapture> BeginCapture(TableChanges& since) const;
  // The ranges of this shard, in their order.
  std::vector<TableRange*> ranges() const;

  // Adds rows, all of this shard; the hashes ascend. `images`: RowLayout::image_words() words each, one after the
  // other. Returns the number of rows added: fewer if there is no memory, or if one existed, which stays as it is
  // unless `replace`.
  size_t Restore(absl::Span<const uint64_t> hashes, const char* images, bool replace = false);

  // See TableRange; the range must be of this shard.
  absl::Status RestoreUses(uint32_t range, absl::string_view uses) {
    return ranges_[range - options_.first_range]->RestoreUses(uses);
  }

  const RowLayout& layout() const { return layout_; }

  // Like TableRange::ForEachRow, for a range of this shard.
  void ForEachRow(uint32_t range, absl::FunctionRef<void(const RowView&)> visitor) const;

  // Like TableRange::CountWaiting and waiting(), for a range of this shard.
  uint64_t CountWaiting(uint32_t range, std::vector<uint64_t>& by_uses) const;

  uint64_t rows() const;
  // See TableRange.
  uint64_t free_places() const;
  uint64_t waiting() const;
  // Bytes of that many ranges without rows.
  static uint64_t BytesOfRanges(uint32_t ranges) {
    return sizeof(SparseTable) + ranges * (sizeof(TableRange) + sizeof(std::unique_ptr<TableRange>));
  }
  // Bytes of index, rows and ranges.
  uint64_t memory_bytes() const;
  const SparseTableOptions& options() const { return options_; }

 private:
  // A range and the number of a message's hashes that lie in it.
  struct Part {
    TableRange* range;
    size_t count;
  };

  // Leads a message through its groups of rows, in order. While the last step of one group runs, the next two groups
  // are being loaded, so the message holds the locks of up to three ranges. All messages take them in ascending order.
  template <bool kChanges, typename Enter, typename Use, typename Leave>
  void Visit(absl::Span<const uint64_t> hashes, const Enter& enter, const Use& use, const Leave& leave) const;

  // The part that starts at hash number `begin`.
  Part NextPart(absl::Span<const uint64_t> hashes, size_t begin) const;
  TableRange& Range(uint64_t hash) const;
  std::vector<TableRange*> Ranges(uint32_t first, uint32_t count) const;

  const SparseTableOptions options_;
  const RowLayout layout_;
  std::vector<std::unique_ptr<TableRange>> ranges_;
};

}  // namespace ballast
