// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// The most similar name, and its edit distance (Levenshtein).
struct NearestName {
  // One of the given names; null if there were none.
  const std::string* name = nullptr;
  size_t distance = 0;
};

// Returns the first of the nearest names. Compares only the first 64 bytes of `got`.
NearestName FindNearestName(absl::string_view got, absl::Span<const std::string> names);

}  // namespace ballast
