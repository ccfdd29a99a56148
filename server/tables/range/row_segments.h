// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "server/tables/range/row_layout.h"
#include "server/tables/range/segmented_array.h"

namespace ballast {

// Owns the rows of one range and hands out places for them. A row never moves. A freed place is the next to be used.
// Deliberately does not know hashes. Thread safety: confined to the thread that holds the range's lock; const methods
// may run on several threads while no other method runs.
class RowSegments {
 public:
  RowSegments(PageArena* arena, const RowLayout& layout) : rows_(arena, layout.bytes()) {}

  // A place whose row has undefined contents; nullopt if there is no memory.
  std::optional<uint32_t> Allocate();

  // Takes back an allocated place.
  void Free(uint32_t place);

  // Address of the row at an allocated place: floats, then the state.
  float* At(uint32_t place) const { return reinterpret_cast<float*>(rows_.At(place)); }

  // Places that were freed and are not used again yet.
  uint64_t free_places() const { return free_places_; }
  uint64_t memory_bytes() const { return rows_.memory_bytes(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  SegmentedArray rows_;
  // Places below this number have been handed out.
  uint32_t end_ = 0;
  // Most recently freed place; the freed row holds the number of the one before it.
  uint32_t free_ = kNone;
  uint32_t free_places_ = 0;
};

}  // namespace ballast
