// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ballast {

// Returns a bijection of the ids of a table: rows in a message ascend by it, and its first bits are the row's range.
inline uint64_t RowHash(uint64_t id, uint32_t table_id) {
  uint64_t h = id ^ (table_id * 0x9e3779b97f4a7c15);
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
  h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
  return h ^ (h >> 31);
}

// Returns the range of a row among 2^range_bits ranges.
inline uint32_t RangeOf(uint64_t h, uint32_t range_bits) { return h >> (64 - range_bits); }

}  // namespace ballast
