// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace ballast {

// A label, and where it stands in its file ("train.csv:17"), for messages.
struct PlacedLabel {
  float label = 0;
  std::string where;
};

// Examples that can be read in any order: rows of features, each with a label. Knows nothing of epochs, shuffling or
// batches.
//
// Thread safety: any number of threads may read at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Number of examples, at least 1.
  virtual uint64_t size() const = 0;
  // Number of features of each example, at least 1.
  virtual uint64_t features() const = 0;

  // Writes the examples with these indices, normalised, row by row. `features` holds indices.size() * this->features()
  // elements, `labels` indices.size(). OUT_OF_RANGE for an index of size() or more, INVALID_ARGUMENT for a span of the
  // wrong size; what the spans hold is then unspecified.
  virtual absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features,
                            absl::Span<float> labels) const = 0;

  // Labels that stand for all: the first that is no whole number where there is one, the lowest and the highest. A loss
  // that takes these takes every example's. Found when the data is opened.
  virtual std::vector<PlacedLabel> ExtremeLabels() const = 0;
};

// What every Read asks first.
absl::Status CheckRead(const Dataset& dataset, absl::Span<const uint64_t> indices, absl::Span<const float> features,
                       absl::Span<const float> labels);

}  // namespace ballast
