// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ballast {

// Weights of rows as they were at one moment.
struct RowWeights {
  // Ascending.
  std::vector<uint64_t> hashes;
  // [hashes, dim].
  std::vector<float> weights;
  // Rows that exist no longer, ascending; of changes only.
  std::vector<uint64_t> removed;

  bool empty() const { return hashes.empty() && removed.empty(); }
};

// The rows of one range that have changed since a follower last took them. Invariant: a row is noted once, however
// often it changes. Deliberately does not know the rows' values. Thread safety: confined to the thread that holds the
// range's lock.
class RangeChanges {
 public:
  // Hashes, in any order. First the removed rows are removed, then the changed ones are set to their values; a changed
  // row that does not exist has been removed, too.
  struct Hashes {
    std::vector<uint64_t> changed;
    std::vector<uint64_t> removed;
  };

  // A row at that place has changed, or was created.
  void Change(uint64_t hash, uint32_t place) {
    const size_t word = place / 64;
    const uint64_t bit = uint64_t{1} << (place % 64);
    if (word >= marks_.size()) marks_.resize(word + 1);
    if ((marks_[word] & bit) != 0) return;
    marks_[word] |= bit;
    hashes_.changed.push_back(hash);
  }

  // The row at that place was removed; another may be created there.
  void Remove(uint64_t hash, uint32_t place) {
    const size_t word = place / 64;
    if (word < marks_.size()) marks_[word] &= ~(uint64_t{1} << (place % 64));
    hashes_.removed.push_back(hash);
  }

  bool empty() const { return hashes_.changed.empty() && hashes_.removed.empty(); }
  // Number of hashes, of which some may occur twice.
  size_t size() const { return hashes_.changed.size() + hashes_.removed.size(); }

  Hashes Take() {
    marks_.clear();
    return std::exchange(hashes_, {});
  }

 private:
  // One bit per place.
  std::vector<uint64_t> marks_;
  Hashes hashes_;
};

}  // namespace ballast
