// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ballast {

// What a worker hands in for one tensor after several batches: the mean of their gradients, or under local SGD what its
// own steps changed. Its memory grows to one copy of the tensor for each of the two that is used.
// Thread safety: none; the training loop's thread.
class GradientAccumulator {
 public:
  // Takes in a batch's gradient, the mean over `examples`, at least 1.
  void Add(absl::Span<const float> gradient, uint32_t examples);

  // The mean over all examples taken in, which the next Add begins anew; empty where there were none. Valid until then.
  absl::Span<const float> TakeMean();

  // A step of plain SGD on the worker's own copy: weights -= learning_rate * TakeMean().
  void Step(float learning_rate, absl::Span<float> weights);

  // What the steps since the last time have subtracted from the weights; empty where there were none. Valid until the
  // next Step.
  absl::Span<const float> TakeChange(absl::Span<const float> weights);

 private:
  // Of gradients, each times its number of examples; then their mean.
  std::vector<float> sum_;
  uint64_t examples_ = 0;
  // The weights before the first step; then their change.
  std::vector<float> before_;
  bool stepped_ = false;
};

}  // namespace ballast
