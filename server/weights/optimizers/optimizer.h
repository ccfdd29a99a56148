// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "ballast/v1/tensor.pb.h"
#include "server/weights/optimizers/gradient.h"

namespace ballast {

// Limit on the floats that an optimizer keeps per weight.
inline constexpr int kMaxSlots = 2;

// One update of a slice.
struct OptimizerStep {
  // Update number, from 1.
  uint64_t update = 1;
  // Learning rate of this update, after schedule and staleness.
  float learning_rate = 0;
  // Factor that is applied to the gradient first.
  float gradient_scale = 1;
  // True if the initial weights were set, so that training starts from them.
  bool begins_from_weights = false;
};

// A slice's arrays, each with as many elements as the gradient. `weights` and `updated` may be the same array;
// nothing else overlaps.
struct OptimizerState {
  const float* weights = nullptr;
  float* updated = nullptr;
  std::array<float*, kMaxSlots> slots = {};
};

// The rule by which a gradient changes weights. Owns only its hyperparameters; its slots are stored with the weights.
// Deliberately knows neither versions nor the gradient's sender.
// Thread safety: immutable.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Number of floats per weight, at most kMaxSlots, all zero before the first update.
  virtual int slots() const = 0;

  // Applies an update to a slice. The bits of the result depend neither on the cuts between the gradient's pieces nor
  // on the machine.
  virtual void Apply(const OptimizerStep& step, const Gradient& gradient, const OptimizerState& state) const = 0;

  // The scheduled learning rate of update number `update` (from 1), at that position in the job if it is known.
  virtual float LearningRate(uint64_t update, std::optional<double> position) const = 0;
  float LearningRate(uint64_t update) const { return LearningRate(update, std::nullopt); }
};

// INVALID_ARGUMENT for a configuration outside the limits of tensor.proto.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::Optimizer& config);

}  // namespace ballast
