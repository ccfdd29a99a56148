// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ballast/v1/table.pb.h"
#include "server/tables/range/row_rules.h"
#include "server/tables/range/table_range.h"

namespace ballast {

// Owns the numbers of a table's rows as they are counted, and those rows with the most updates. Thread safety: none.
class RowInspection {
 public:
  // `top`: number of rows to remember.
  RowInspection(uint32_t table_id, const RowTime& time, size_t top) : table_id_(table_id), time_(time), top_(top) {}

  // Counts a row, unless it has expired.
  void Add(const RowView& row);
  void AddWaiting(uint64_t ids, const std::vector<uint64_t>& by_uses);

  const v1::RowStatistics& statistics() const { return statistics_; }
  // Those with the most updates first; of equal ones, in the order of their hashes.
  std::vector<v1::HotRow> Top() const;

 private:
  struct Hot {
    uint64_t hash;
    uint32_t updates;
    uint32_t age;
    float norm;
    bool operator<(const Hot& other) const {
      return updates != other.updates ? updates > other.updates : hash < other.hash;
    }
  };

  const uint32_t table_id_;
  const RowTime time_;
  const size_t top_;
  v1::RowStatistics statistics_;
  // A heap whose first row has the fewest updates.
  std::vector<Hot> hot_;
};

}  // namespace ballast
