// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/tables/range/page_arena.h"

namespace ballast {

// Owns an array of elements of one size, in segments from an arena. Elements never move. A new segment is at most a
// quarter of the array and about 32 KiB, or one element, so little memory is unused at any size. The first segments,
// and four more of each size, have a power of two of elements; that makes an element's address a matter of shifts.
// Deliberately does not know what the elements are. Thread safety: confined to the thread that holds the owner's lock;
// At may be called from several threads while nobody calls Resize.
class SegmentedArray {
 public:
  // `element_bytes`: 1 to PageArena::kMaxSegmentBytes.
  SegmentedArray(PageArena* arena, size_t element_bytes);
  ~SegmentedArray();
  SegmentedArray(const SegmentedArray&) = delete;
  SegmentedArray& operator=(const SegmentedArray&) = delete;

  // Makes room for `elements`, with undefined contents; never shrinks. False, and nothing lost, if the arena is full.
  bool Reserve(uint64_t elements);

  // Address of an element below the reserved number.
  char* At(uint64_t element) const {
    if (element >= uint64_t{4} << large_shift_) {
      const uint64_t offset = element & ((uint64_t{1} << large_shift_) - 1);
      return segments_[large_base_ + (element >> large_shift_)] + offset * bytes_;
    }
    const uint64_t unit = element >> small_shift_;
    if (unit < 4) return segments_[unit] + (element & ((uint64_t{1} << small_shift_) - 1)) * bytes_;
    const int doublings = std::bit_width(unit) - 3;
    const uint64_t offset = element & ((uint64_t{1} << (small_shift_ + doublings)) - 1);
    return segments_[4 * doublings + (unit >> doublings)] + offset * bytes_;
  }

  uint64_t capacity() const { return capacity_; }
  // Bytes of the segments and of the list of them.
  uint64_t memory_bytes() const { return segment_bytes_ + segments_.capacity() * sizeof(char*); }

 private:
  // Elements of the segment with that number.
  uint64_t ElementsOf(size_t segment) const;
  size_t BytesOf(size_t segment) const;

  PageArena* const arena_;
  const size_t bytes_;
  // Elements of the largest and of the smallest segments, as powers of two.
  const int large_shift_, small_shift_;
  // Segment large_base_ + n starts at element n << large_shift_, for n of 4 or more.
  const size_t large_base_;
  std::vector<char*> segments_;
  uint64_t capacity_ = 0;
  uint64_t segment_bytes_ = 0;
};

}  // namespace ballast
