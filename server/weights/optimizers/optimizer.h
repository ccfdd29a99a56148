// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "ballast/v1/tensor.pb.h"
#include "common/simd/instruction_set.h"
#include "server/weights/optimizers/gradient.h"

namespace ballast {

// Floats that an optimizer may keep beside a weight.
inline constexpr int kMaxSlots = 2;

// One update of a slice.
struct OptimizerStep {
  // From 1.
  uint64_t update = 1;
  // Of this update, after schedule and staleness.
  float learning_rate = 0;
  // The gradient is multiplied by it first.
  float gradient_scale = 1;
  // The weights before the first update were set, to be trained on from.
  bool begins_from_weights = false;
};

// A slice's floats, as many of each as its gradient has. `weights` and `updated` are the same or apart; nothing else
// overlaps.
struct OptimizerState {
  const float* weights = nullptr;
  float* updated = nullptr;
  std::array<float*, kMaxSlots> slots = {};
};

// The rule by which a gradient changes weights. Holds its hyperparameters only; the slots it needs lie with the
// weights. Knows nothing of versions or who sent the gradient.
// Thread safety: immutable.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Floats kept per weight beside it, at most kMaxSlots, all zero before the first update.
  virtual int slots() const = 0;

  // Applies an update to a slice. The bits of the result do not depend on where the gradient's pieces were cut, nor on
  // the machine.
  virtual void Apply(const OptimizerStep& step, const Gradient& gradient, const OptimizerState& state) const = 0;

  // The rate of update number `update` (from 1) by the schedule, at that position in the job if one is known.
  virtual float LearningRate(uint64_t update, std::optional<double> position) const = 0;
  float LearningRate(uint64_t update) const { return LearningRate(update, std::nullopt); }
};

// INVALID_ARGUMENT for a configuration out of the limits of tensor.proto.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& config);

// With a given instruction set, which the machine must have, instead of the fastest.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& config, InstructionSet set);

}  // namespace ballast
