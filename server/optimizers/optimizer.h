// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Floats that an optimizer may keep beside a weight.
inline constexpr int kMaxSlots = 2;

// The update that a block is part of.
struct OptimizerStep {
  // From 1.
  uint64_t update = 1;
  // Of this update, after schedule and staleness.
  float learning_rate = 0;
  // The gradient is multiplied by it first.
  float gradient_scale = 1;
};

// Consecutive elements of a slice, gradient.size() of each. `weights` and `updated` are the same or apart; nothing else
// overlaps.
struct OptimizerBlock {
  absl::Span<const float> gradient;
  const float* weights = nullptr;
  float* updated = nullptr;
  std::array<float*, kMaxSlots> slots = {};
};

// The rule by which a gradient changes weights. Holds its hyperparameters only; the slots it needs lie with the
// weights. Knows nothing of slices, versions or who sent the gradient.
// Thread safety: immutable.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Floats kept per weight beside it, at most kMaxSlots, all zero before the first update.
  virtual int slots() const = 0;

  // Whether a slice must come in one block, for the rule takes norms over it.
  virtual bool wants_whole_slice() const = 0;

  // Applies an update to one block of a slice. The bits of the result do not depend on how a slice is cut into blocks,
  // nor on the machine.
  virtual void Apply(const OptimizerStep& step, const OptimizerBlock& block) const = 0;

  // The rate of update number `update` (from 1), by the schedule.
  virtual float LearningRate(uint64_t update) const = 0;
};

// INVALID_ARGUMENT for a configuration out of the limits of tensor.proto.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& config);

}  // namespace ballast
