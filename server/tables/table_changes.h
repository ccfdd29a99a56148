// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/tables/range/range_changes.h"
#include "server/tables/range/table_range.h"

namespace ballast {

// Owns the followers of some ranges of a table: which of their rows have changed since a moment. Invariant: each range
// is followed as long as this exists. Deliberately knows neither the rows' values nor the moment. Thread safety: none;
// the ranges guard their followers.
class TableChanges {
 public:
  // Follows the ranges, which must outlive this, from now on.
  explicit TableChanges(std::vector<TableRange*> ranges) : ranges_(std::move(ranges)), changes_(ranges_.size()) {
    for (size_t i = 0; i < ranges_.size(); ++i) ranges_[i]->Follow(&changes_[i]);
  }
  ~TableChanges() {
    for (size_t i = 0; i < ranges_.size(); ++i) ranges_[i]->Unfollow(&changes_[i]);
  }
  TableChanges(const TableChanges&) = delete;
  TableChanges& operator=(const TableChanges&) = delete;

  // Number of rows that were changed or removed; a row that was both may count several times.
  uint64_t Count() const {
    uint64_t count = 0;
    for (size_t i = 0; i < ranges_.size(); ++i) count += ranges_[i]->CountChanges(changes_[i]);
    return count;
  }

  // The follower of each range, for TableRange::BeginCapture, which takes the changes out of it.
  absl::Span<RangeChanges> of_ranges() { return absl::MakeSpan(changes_); }

 private:
  const std::vector<TableRange*> ranges_;
  std::vector<RangeChanges> changes_;
};

}  // namespace ballast
