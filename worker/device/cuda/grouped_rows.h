// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ballast {

// Row indices sorted by target row, in their original order within one target: see RowGroups.
struct GroupedRows {
  std::vector<int64_t> target, begin, source;

  explicit GroupedRows(absl::Span<const int64_t> rows);
};

}  // namespace ballast
