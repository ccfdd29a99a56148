// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/segmented_array.h"

#include <algorithm>

namespace ballast {
namespace {

// Elements of the smallest segments: 4, or fewer if they are large.
constexpr int kSmallShift = 2;
// Bytes of the largest segments, except those of a single element: a range has one that is partly unused.
constexpr size_t kLargeBytes = 32 << 10;

int LargeShift(size_t element_bytes) { return std::bit_width(std::max(kLargeBytes / element_bytes, size_t{1})) - 1; }

}  // namespace

SegmentedArray::SegmentedArray(PageArena* arena, size_t element_bytes)
    : arena_(arena),
      bytes_(element_bytes),
      large_shift_(LargeShift(element_bytes)),
      small_shift_(std::min(kSmallShift, large_shift_)),
      large_base_(4 * (large_shift_ - small_shift_)) {}

SegmentedArray::~SegmentedArray() {
  for (size_t segment = 0; segment < segments_.size(); ++segment) arena_->Free(segments_[segment], BytesOf(segment));
}

bool SegmentedArray::Reserve(uint64_t elements) {
  while (capacity_ < elements) {
    const size_t bytes = BytesOf(segments_.size());
    void* memory = arena_->Allocate(bytes);
    if (memory == nullptr) return false;
    capacity_ += ElementsOf(segments_.size());
    segments_.push_back(static_cast<char*>(memory));
    segment_bytes_ += bytes;
  }
  return true;
}

uint64_t SegmentedArray::ElementsOf(size_t segment) const {
  // Four segments of the smallest size, then four of each size from the smallest on.
  const int doublings = segment < 4 ? 0 : static_cast<int>(segment / 4) - 1;
  return uint64_t{1} << std::min(small_shift_ + doublings, large_shift_);
}

size_t SegmentedArray::BytesOf(size_t segment) const {
  const size_t bytes = ElementsOf(segment) * bytes_;
  return (bytes + PageArena::kLineBytes - 1) / PageArena::kLineBytes * PageArena::kLineBytes;
}

}  // namespace ballast
