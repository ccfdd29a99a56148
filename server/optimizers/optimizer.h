// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// The rule by which a gradient changes weights. Holds its hyperparameters only; the slots it needs lie with the
// weights. Knows nothing of slices, versions or who sent the gradient.
// Thread safety: immutable.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Floats kept per weight beside it, all zero before the first update.
  virtual int slots() const = 0;

  // The rate that update number `update` (from 1) uses.
  virtual float LearningRate(uint64_t update) const = 0;

  // Applies update number `update` (from 1). `gradient` and `weights` have n elements; `slots` has slots() * n, slot by
  // slot.
  virtual void Apply(uint64_t update, absl::Span<const float> gradient, absl::Span<float> weights,
                     absl::Span<float> slots) const = 0;
};

// INVALID_ARGUMENT for a configuration out of the limits of tensor.proto.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& config);

}  // namespace ballast
