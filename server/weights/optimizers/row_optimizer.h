// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// One update of a row. Rows of one call do not overlap.
struct RowUpdate {
  // `dim` weights, then SlotFloats(dim) slots, all zero before the first update; updated in place.
  float* row;
  // `dim` floats.
  const float* gradient;
  // Number of this update of the row, from 1. Kinds of FTRL take initial weights as zeros in update 1.
  uint32_t update;
  // Learning rate of this update, after schedule and staleness.
  float learning_rate;
};

// The rule by which gradients change the rows of a table. A row changes as a tensor of `dim` elements in one slice
// does, bit for bit. Owns only its hyperparameters. Deliberately knows neither ids nor how rows are stored. Thread
// safety: immutable.
class RowOptimizer {
 public:
  virtual ~RowOptimizer() = default;

  // Floats that are stored after a row's weights: arrays of `dim` floats, then floats for the row as a whole.
  virtual int SlotFloats(int dim) const = 0;

  // Updates each row, after its gradient is multiplied by `gradient_scale`. Fastest for some 16 rows at once: a row of
  // 16 floats in the cache then takes 3 to 50 ns, depending on the kind. The bits of the result do not depend on the
  // machine.
  virtual void Apply(int dim, float gradient_scale, absl::Span<const RowUpdate> rows) const = 0;

  // The scheduled learning rate of update number `update` (from 1), at that position in the job if it is known.
  virtual float LearningRate(uint64_t update, std::optional<double> position) const = 0;
};

// INVALID_ARGUMENT for a configuration outside the limits of tensor.proto.
absl::StatusOr<std::unique_ptr<RowOptimizer>> MakeRowOptimizer(const v1::Optimizer& config);

}  // namespace ballast
