// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ballast {

// Remembers about as many evicted rows of a range as the range has rows, by 16 bits of each hash, to count those that
// return. It may forget a row, and takes one in 65,000 others for it. Thread safety: confined to the thread that holds
// the range's lock.
class EvictedHashes {
 public:
  // `range_bits`: the leading bits that all hashes share. `rows`: rows of the range.
  void Add(uint64_t hash, int range_bits, uint64_t rows) {
    if (rows > prints_.size()) prints_.assign(std::bit_ceil(rows | 63), 0);
    prints_[Slot(hash, range_bits)] = Print(hash);
  }

  // True if the row was evicted, which is then forgotten.
  bool Take(uint64_t hash, int range_bits) {
    if (prints_.empty()) return false;
    uint16_t& print = prints_[Slot(hash, range_bits)];
    if (print != Print(hash)) return false;
    print = 0;
    return true;
  }

  size_t memory_bytes() const { return prints_.capacity() * sizeof(uint16_t); }

 private:
  // The number of slots is a power of two, of at most 2^32.
  size_t Slot(uint64_t hash, int range_bits) const {
    return static_cast<size_t>(((hash << range_bits) >> 32) * prints_.size() >> 32);
  }
  // Never 0, which marks a free slot.
  static uint16_t Print(uint64_t hash) { return static_cast<uint16_t>(hash % 0xffff + 1); }

  std::vector<uint16_t> prints_;
};

}  // namespace ballast
