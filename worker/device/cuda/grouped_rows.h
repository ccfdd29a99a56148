// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/device/embedding_operations.h"

namespace ballast {

// Row indices sorted by target row, in their original order within one target: see RowGroups.
struct GroupedRows {
  std::vector<int64_t> target, begin, source;

  explicit GroupedRows(absl::Span<const int64_t> rows);
};

// Bags of the places of each row of a table with `rows` rows, in the order of the places: see RowPlaces.
struct GroupedPlaces {
  std::vector<uint32_t> begin, bag;

  GroupedPlaces(const RowBags& bags, int64_t rows);
};

}  // namespace ballast
