// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// The name that was probably meant, and by how many edits (Levenshtein's distance) it differs.
struct NearestName {
  // One of the names asked about; null where there were none.
  const std::string* name = nullptr;
  size_t distance = 0;
};

// The first of the nearest. Compares the first 64 bytes of `got`.
NearestName FindNearestName(absl::string_view got, absl::Span<const std::string> names);

}  // namespace ballast
