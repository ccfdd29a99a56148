// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/tables/range/range_changes.h"
#include "server/tables/range/row_layout.h"

namespace ballast {

// Rows as they were at one moment. An image is RowLayout::image_words() words: weights, slots, state.
struct RowImages {
  // Ascending.
  std::vector<uint64_t> hashes;
  // The image of each, in their order.
  std::vector<uint32_t> words;
  // Rows to remove before; of changes only. Ascending.
  std::vector<uint64_t> removed;
  // See UseCounts::Save; not set if uses are not counted.
  std::optional<std::string> uses;
};

// Keeps what one range's rows were when the capture began, while they change: the image of each row before its first
// change, and a mark for its place. A row that begins is marked without an image. Deliberately does not know the rows
// that stay as they are. Thread safety: confined to the thread that holds the range's lock.
class RangeCapture {
 public:
  // To be called before a row at that place changes, is created or is removed. True for the first time.
  bool Mark(uint32_t place) {
    const size_t word = place / 64;
    if (word >= marks_.size()) marks_.resize(word + 1);
    const uint64_t bit = uint64_t{1} << (place % 64);
    const bool first = (marks_[word] & bit) == 0;
    marks_[word] |= bit;
    return first;
  }

  bool IsMarked(uint32_t place) const {
    const size_t word = place / 64;
    return word < marks_.size() && (marks_[word] >> (place % 64) & 1) != 0;
  }

  // Adds the image of a row that was just marked.
  void Keep(uint64_t hash, const float* row, const RowLayout& layout) {
    kept_.hashes.push_back(hash);
    const size_t begin = kept_.words.size();
    kept_.words.resize(begin + layout.image_words());
    std::memcpy(kept_.words.data() + begin, row, layout.image_words() * sizeof(uint32_t));
  }

  // Keeps the counts of uses, before their first change. `save` returns them.
  template <typename Save>
  void KeepUses(const Save& save) {
    if (!uses_.has_value()) uses_ = save();
  }
  // Not set if the counts have not changed.
  std::optional<std::string>& uses() { return uses_; }

  // In the order of the changes.
  const RowImages& kept() const { return kept_; }

  // Confines the capture to these rows, and to what was removed, as of its beginning. To be called at the beginning.
  void Confine(RangeChanges::Hashes changes) { only_ = std::move(changes); }
  // Not set if the capture is of all rows.
  std::optional<RangeChanges::Hashes>& only() { return only_; }

 private:
  // One bit per place.
  std::vector<uint64_t> marks_;
  RowImages kept_;
  std::optional<std::string> uses_;
  std::optional<RangeChanges::Hashes> only_;
};

}  // namespace ballast
