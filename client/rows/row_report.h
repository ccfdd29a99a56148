// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ballast/v1/parameter_service.pb.h"
#include "ballast/v1/table.pb.h"

namespace ballast {

// Owns the sums of what shards say of a table's rows. Thread safety: none.
class RowReport {
 public:
  // `top`: number of rows to keep.
  explicit RowReport(size_t top) : top_limit_(top) {}

  void Add(const v1::InspectRowsResponse& part);

  const v1::RowStatistics& statistics() const { return statistics_; }
  // The rows with the most updates first.
  const std::vector<v1::HotRow>& top() const { return top_; }

 private:
  size_t top_limit_;
  v1::RowStatistics statistics_;
  std::vector<v1::HotRow> top_;
};

// Rows and updates that a table would have if ids got their rows only after some uses. Counts each update as one use;
// with a sketch of uses, ids that wait are not included.
struct AdmissionForecast {
  uint32_t min_uses = 0;
  // A range, because rows with more than 16 updates are counted in groups.
  uint64_t rows_least = 0, rows_most = 0;
  // Updates that would still be made, of all that were made.
  uint64_t updates_least = 0, updates_most = 0;
};
AdmissionForecast Forecast(const v1::RowStatistics& statistics, uint32_t min_uses);

}  // namespace ballast
