// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/grouped_rows.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace ballast {

GroupedRows::GroupedRows(absl::Span<const int64_t> rows) : source(rows.size()) {
  std::iota(source.begin(), source.end(), 0);
  std::stable_sort(source.begin(), source.end(), [&](int64_t a, int64_t b) { return rows[a] < rows[b]; });
  for (size_t k = 0; k < source.size(); ++k) {
    const int64_t row = rows[source[k]];
    if (!target.empty() && target.back() == row) continue;
    target.push_back(row);
    begin.push_back(static_cast<int64_t>(k));
  }
  begin.push_back(static_cast<int64_t>(source.size()));
}

// Counts the places of each row instead of sorting them: batches have about as many places as rows.
GroupedPlaces::GroupedPlaces(const RowBags& bags, int64_t rows) : begin(rows + 1), bag(bags.places.size()) {
  for (const uint32_t row : bags.places) ++begin[row + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<uint32_t> next = begin;
  size_t place = 0;
  for (size_t i = 0; i < bags.ends.size(); ++i) {
    for (; place < bags.ends[i]; ++place) bag[next[bags.places[place]]++] = static_cast<uint32_t>(i);
  }
}

}  // namespace ballast
