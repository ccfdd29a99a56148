// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ballast {

// Owns the distinct rows of a list of ids, in ascending order of RowHash, and the places of each in the list. Does not
// own the list. Thread safety: immutable.
class RowOrder {
 public:
  // One place of a row in the list of ids.
  struct Place {
    uint64_t hash;
    uint32_t position;
  };

  // Most ids in a list.
  static constexpr size_t kMaxIds = (uint64_t{1} << 32) - 1;

  // `ids` has at most kMaxIds.
  RowOrder(uint32_t table_id, absl::Span<const uint64_t> ids);

  // Number of distinct rows.
  size_t size() const { return starts_.size() - 1; }

  // Returns the places of a row, ascending by position; at least one. All have the row's hash.
  absl::Span<const Place> operator[](size_t row) const {
    return absl::MakeSpan(places_).subspan(starts_[row], starts_[row + 1] - starts_[row]);
  }

  // Returns the number of rows whose hash is below `hash`.
  size_t CountBelow(uint64_t hash) const;

 private:
  // Ascending by hash, then by position.
  std::vector<Place> places_;
  // Index of each row's first place, and the number of places.
  std::vector<uint32_t> starts_;
};

}  // namespace ballast
