// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/row_segments.h"

#include <cstring>

namespace ballast {

std::optional<uint32_t> RowSegments::Allocate() {
  if (free_ != kNone) {
    const uint32_t place = free_;
    std::memcpy(&free_, rows_.At(place), sizeof(free_));
    --free_places_;
    return place;
  }
  if (end_ == kNone || !rows_.Reserve(uint64_t{end_} + 1)) return std::nullopt;
  return end_++;
}

void RowSegments::Free(uint32_t place) {
  std::memcpy(rows_.At(place), &free_, sizeof(free_));
  free_ = place;
  ++free_places_;
}

}  // namespace ballast
