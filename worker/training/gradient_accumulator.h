// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ballast {

// Computes what a worker pushes for one tensor after several batches: the mean of their gradients, or under local SGD
// the change that its local steps made. Memory grows to one copy of the tensor for each of the two that is used.
// Thread safety: none; one thread at a time.
class GradientAccumulator {
 public:
  // Adds the gradient of a batch, which is the mean over `examples` (at least 1).
  void Add(absl::Span<const float> gradient, uint32_t examples);

  // Returns the mean over all examples since the last call, or empty if there were none. Valid until the next Add.
  absl::Span<const float> TakeMean();

  // Makes one step of plain SGD on the worker's own copy: weights -= learning_rate * TakeMean().
  void Step(float learning_rate, absl::Span<float> weights);

  // Returns the amount that Step has subtracted from the weights since the last call, or empty if there was no step.
  // Valid until the next Step.
  absl::Span<const float> TakeChange(absl::Span<const float> weights);

 private:
  // Sum of the gradients, each times its number of examples; after TakeMean, their mean.
  std::vector<float> sum_;
  uint64_t examples_ = 0;
  // The weights before the first step; after TakeChange, their change.
  std::vector<float> before_;
  bool stepped_ = false;
};

}  // namespace ballast
