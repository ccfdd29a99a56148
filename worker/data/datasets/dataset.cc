// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/dataset.h"

#include "absl/strings/str_cat.h"

namespace ballast {

absl::Status CheckRead(const Dataset& dataset, absl::Span<const uint64_t> indices, absl::Span<const float> features,
                       absl::Span<const float> labels) {
  if (labels.size() != indices.size()) {
    return absl::InvalidArgumentError(absl::StrCat("span has ", labels.size(), " labels, want ", indices.size()));
  }
  uint64_t elements = 0;
  if (__builtin_mul_overflow(indices.size(), dataset.features(), &elements) || features.size() != elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("span has ", features.size(), " features, want ", indices.size(), " x ", dataset.features()));
  }
  for (const uint64_t index : indices) {
    if (index >= dataset.size()) {
      return absl::OutOfRangeError(absl::StrCat("example has index ", index, ", want less than ", dataset.size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace ballast
