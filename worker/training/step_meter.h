// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace ballast {

// Some elements of a tensor, evenly spread over it: all of a small one.
class WeightSample {
 public:
  static constexpr size_t kMost = size_t{1} << 16;

  explicit WeightSample(absl::Span<const float> weights);

  // Returns the sum of squares of the whole tensor, estimated from the sample.
  double SumOfSquares() const;
  // Returns the same for the difference to `weights`, the tensor's present values.
  double SumOfSquaredChanges(absl::Span<const float> weights) const;

 private:
  size_t size_;
  size_t stride_;
  std::vector<float> elements_;
};

// Returns the sum of the squares of all elements.
double SumOfSquares(absl::Span<const float> elements);

// Contribution of one group of tensors to a step's figures.
struct GroupMeasure {
  // Sum of squares of the gradient that is pushed; nullopt if it does not pass this host's memory as floats.
  std::optional<double> gradient_squares;
  // The weights before the push, by tensor; empty if they are not in this host's memory.
  std::vector<WeightSample> weights;
};

// Figures of a step's effect on the model.
struct StepFigures {
  // Euclidean norm of the step's gradient over all tensors; nullopt if part of it is unknown.
  std::optional<double> gradient_norm;
  // Euclidean norm of the change of all weights from the push until the servers' new values came, over that of the
  // weights before; the change has the updates of other workers, too. nullopt if part of it is unknown.
  std::optional<double> update_ratio;
};

// Measures some of a worker's steps, because that costs a pass over the model: at most one in `interval`. A step's
// groups are added in any order, each once. Thread safety: none.
class StepMeter {
 public:
  explicit StepMeter(absl::Duration interval) : interval_(interval) {}

  // Call it at the beginning of a step whose groups will be `groups`; returns whether to measure it.
  bool Begin(size_t groups, absl::Time now);

  // Adds a group whose new values have come: `change_squares` is empty if they are unknown.
  void Add(const GroupMeasure& group, std::optional<double> change_squares);

  // Figures of the newest step whose groups have all been added.
  const StepFigures& figures() const { return figures_; }

 private:
  const absl::Duration interval_;
  absl::Time next_ = absl::InfinitePast();
  // Groups of the measured step that are still to come.
  size_t missing_ = 0;
  bool gradient_known_ = true;
  bool weights_known_ = true;
  double gradient_squares_ = 0;
  double weight_squares_ = 0;
  double change_squares_ = 0;
  StepFigures figures_;
};

}  // namespace ballast
