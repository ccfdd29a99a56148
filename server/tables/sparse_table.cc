// SPDX-License-Identifier: Apache-2.0
#include "server/tables/sparse_table.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "common/tables/row_hash.h"

namespace ballast {
namespace {

// Spreads the growth of ranges, which have nearly the same number of rows: multiples of the golden ratio, modulo 1.
float StaggerOf(uint32_t range) { return static_cast<float>(range * 0x9e3779b9u) * 0x1p-32f * 0.999f; }

}  // namespace

SparseTable::SparseTable(PageArena* arena, const SparseTableOptions& options)
    : options_(options), layout_(options.dim, options.slot_floats) {
  for (uint32_t i = 0; i < options.range_count; ++i) {
    ranges_.push_back(std::make_unique<TableRange>(arena, layout_, options.range_bits,
                                                   StaggerOf(options.first_range + i), options.rules));
  }
}

absl::Status SparseTable::CheckHashes(absl::Span<const uint64_t> hashes) const {
  for (size_t i = 1; i < hashes.size(); ++i) {
    if (hashes[i - 1] >= hashes[i]) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "row %d has hash %016x, want more than %016x, the hash before it", i, hashes[i], hashes[i - 1]));
    }
  }
  const uint32_t first = options_.first_range;
  const uint32_t end = first + options_.range_count;
  for (size_t i : {size_t{0}, hashes.size() - 1}) {
    if (hashes.empty()) break;
    const uint32_t range = RangeOf(hashes[i], options_.range_bits);
    if (range < first || range >= end) {
      return absl::InvalidArgumentError(
          absl::StrFormat("row %d is in range %d, want a range from %d to %d", i, range, first, int64_t{end} - 1));
    }
  }
  return absl::OkStatus();
}

// The locks that are held change from step to step, which the analysis cannot follow.
template <bool kChanges, typename Enter, typename Use, typename Leave>
void SparseTable::Visit(absl::Span<const uint64_t> hashes, const Enter& enter, const Use& use,
                        const Leave& leave) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  struct Stage {
    TableRange* range = nullptr;
    // The group is the last one of its range.
    bool last = false;
    RowGroup group;
  };
  Stage stages[3];
  const auto hashes_of = [&](const RowGroup& group) { return hashes.subspan(group.begin, group.count); };
  Part part{nullptr, 0};
  size_t begin = 0, begun = 0, found = 0, used = 0;
  while (used < begun || begin < hashes.size()) {
    if (begin < hashes.size()) {
      if (part.count == 0) {
        part = NextPart(hashes, begin);
        enter(*part.range, hashes.subspan(begin, part.count));
      }
      Stage& stage = stages[begun++ % 3];
      stage.range = part.range;
      stage.group.begin = begin;
      stage.group.count = std::min(part.count, RowGroup::kMost);
      begin += stage.group.count;
      part.count -= stage.group.count;
      stage.last = part.count == 0;
      stage.range->Prefetch(hashes_of(stage.group), stage.group);
    }
    if (found < begun && (begun - found == 2 || begin == hashes.size())) {
      Stage& stage = stages[found++ % 3];
      stage.range->Find(hashes_of(stage.group), stage.group, kChanges);
    }
    if (used < found && (found - used == 2 || found == begun)) {
      Stage& stage = stages[used++ % 3];
      use(*stage.range, stage.group);
      if (stage.last) leave(*stage.range);
    }
  }
}

void SparseTable::Pull(const BatchPull& pull) const {
  Visit</*kChanges=*/false>(
      pull.hashes,
      [](TableRange& range, absl::Span<const uint64_t>) ABSL_NO_THREAD_SAFETY_ANALYSIS { range.EnterPull(); },
      [&](TableRange& range, RowGroup& group) ABSL_NO_THREAD_SAFETY_ANALYSIS { range.Pull(pull, group); },
      [](TableRange& range) ABSL_NO_THREAD_SAFETY_ANALYSIS { range.LeavePull(); });
}

uint64_t SparseTable::CountMissing(absl::Span<const uint64_t> hashes) const {
  uint64_t missing = 0;
  for (size_t begin = 0; begin < hashes.size();) {
    const Part part = NextPart(hashes, begin);
    missing += part.range->CountMissing(hashes.subspan(begin, part.count));
    begin += part.count;
  }
  return missing;
}

std::vector<uint64_t> SparseTable::ReserveOrder(absl::Span<const uint64_t> hashes) {
  std::vector<uint64_t> places;
  for (size_t begin = 0; begin < hashes.size();) {
    const Part part = NextPart(hashes, begin);
    places.push_back(part.range->ReserveOrder());
    begin += part.count;
  }
  return places;
}

BatchOutcome SparseTable::Push(const BatchPush& push) {
  BatchOutcome outcome;
  const bool ordered = !push.places.empty();
  if (ordered) {
    size_t parts = 0;
    for (size_t begin = 0; begin < push.hashes.size();) {
      const Part part = NextPart(push.hashes, begin);
      part.range->AwaitTurn(push.places[parts++]);
      begin += part.count;
    }
  }
  Visit</*kChanges=*/true>(
      push.hashes,
      [&](TableRange& range, absl::Span<const uint64_t> hashes)
          ABSL_NO_THREAD_SAFETY_ANALYSIS { range.EnterPush(hashes, push.time, outcome); },
      [&](TableRange& range, RowGroup& group) ABSL_NO_THREAD_SAFETY_ANALYSIS { range.Push(push, group, outcome); },
      [&](TableRange& range) ABSL_NO_THREAD_SAFETY_ANALYSIS { range.LeavePush(ordered, push.time, outcome); });
  return outcome;
}

void SparseTable::Reserve(uint32_t range, uint64_t rows) { ranges_[range - options_.first_range]->Reserve(rows); }

bool SparseTable::Erase(uint64_t hash) { return Range(hash).Erase(hash); }

std::vector<TableRange*> SparseTable::Ranges(uint32_t first, uint32_t count) const {
  std::vector<TableRange*> ranges;
  for (uint32_t range = first; range < first + count; ++range) {
    ranges.push_back(ranges_[range - options_.first_range].get());
  }
  return ranges;
}

std::vector<TableRange*> SparseTable::ranges() const {
  std::vector<TableRange*> ranges;
  for (const auto& range : ranges_) ranges.push_back(range.get());
  return ranges;
}

std::unique_ptr<TableCapture> SparseTable::BeginCapture(uint32_t first, uint32_t count) const {
  return std::make_unique<TableCapture>(first, Ranges(first, count), layout_);
}

std::unique_ptr<TableChanges> SparseTable::Follow() const {
  return std::make_unique<TableChanges>(Ranges(options_.first_range, options_.range_count));
}

std::unique_ptr<TableCapture> SparseTable::BeginCapture(TableChanges& since) const {
  return std::make_unique<TableCapture>(options_.first_range, Ranges(options_.first_range, options_.range_count),
                                        layout_, since.of_ranges());
}

size_t SparseTable::Restore(absl::Span<const uint64_t> hashes, const char* images, bool replace) {
  const size_t bytes = layout_.image_words() * sizeof(uint32_t);
  size_t restored = 0;
  for (size_t begin = 0; begin < hashes.size();) {
    const Part part = NextPart(hashes, begin);
    restored += part.range->Restore(hashes.subspan(begin, part.count), images + begin * bytes, replace);
    begin += part.count;
  }
  return restored;
}

void SparseTable::ForEachRow(uint32_t range, absl::FunctionRef<void(const RowView&)> visitor) const {
  ranges_[range - options_.first_range]->ForEachRow(visitor);
}

uint64_t SparseTable::CountWaiting(uint32_t range, std::vector<uint64_t>& by_uses) const {
  const TableRange& counted = *ranges_[range - options_.first_range];
  counted.CountWaiting(by_uses);
  return counted.waiting();
}

uint64_t SparseTable::rows() const {
  uint64_t rows = 0;
  for (const auto& range : ranges_) rows += range->rows();
  return rows;
}

uint64_t SparseTable::free_places() const {
  uint64_t places = 0;
  for (const auto& range : ranges_) places += range->free_places();
  return places;
}

uint64_t SparseTable::waiting() const {
  uint64_t ids = 0;
  for (const auto& range : ranges_) ids += range->waiting();
  return ids;
}

uint64_t SparseTable::memory_bytes() const {
  uint64_t bytes = sizeof(*this) + ranges_.capacity() * sizeof(ranges_[0]);
  for (const auto& range : ranges_) bytes += range->memory_bytes();
  return bytes;
}

SparseTable::Part SparseTable::NextPart(absl::Span<const uint64_t> hashes, size_t begin) const {
  const uint32_t range = RangeOf(hashes[begin], options_.range_bits);
  size_t end = begin + 1;
  while (end < hashes.size() && RangeOf(hashes[end], options_.range_bits) == range) ++end;
  // The next range's own memory arrives while this one is visited.
  if (end < hashes.size()) Range(hashes[end]).Prefetch();
  return {&Range(hashes[begin]), end - begin};
}

TableRange& SparseTable::Range(uint64_t hash) const {
  return *ranges_[RangeOf(hash, options_.range_bits) - options_.first_range];
}

}  // namespace ballast
