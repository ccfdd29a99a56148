// SPDX-License-Identifier: Apache-2.0
#include "worker/training/step_meter.h"

#include <algorithm>
#include <cmath>

namespace ballast {

WeightSample::WeightSample(absl::Span<const float> weights)
    : size_(weights.size()), stride_(std::max<size_t>((size_ + kMost - 1) / kMost, 1)) {
  elements_.reserve(size_ / stride_ + 1);
  for (size_t i = 0; i < size_; i += stride_) elements_.push_back(weights[i]);
}

double WeightSample::SumOfSquares() const {
  if (elements_.empty()) return 0;
  return ballast::SumOfSquares(elements_) * static_cast<double>(size_) / static_cast<double>(elements_.size());
}

double WeightSample::SumOfSquaredChanges(absl::Span<const float> weights) const {
  if (elements_.empty()) return 0;
  double sum = 0;
  for (size_t i = 0; i < elements_.size(); ++i) {
    const double change = static_cast<double>(weights[i * stride_]) - elements_[i];
    sum += change * change;
  }
  return sum * static_cast<double>(size_) / static_cast<double>(elements_.size());
}

double SumOfSquares(absl::Span<const float> elements) {
  // Several sums, so that additions need not wait for each other.
  constexpr size_t kSums = 16;
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= elements.size(); i += kSums) {
    for (size_t j = 0; j < kSums; ++j) sums[j] += static_cast<double>(elements[i + j]) * elements[i + j];
  }
  for (; i < elements.size(); ++i) sums[0] += static_cast<double>(elements[i]) * elements[i];
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

bool StepMeter::Begin(size_t groups, absl::Time now) {
  if (missing_ > 0 || groups == 0 || now < next_) return false;
  next_ = now + interval_;
  missing_ = groups;
  gradient_known_ = weights_known_ = true;
  gradient_squares_ = weight_squares_ = change_squares_ = 0;
  return true;
}

void StepMeter::Add(const GroupMeasure& group, std::optional<double> change_squares) {
  gradient_known_ = gradient_known_ && group.gradient_squares.has_value();
  gradient_squares_ += group.gradient_squares.value_or(0);
  weights_known_ = weights_known_ && change_squares.has_value();
  change_squares_ += change_squares.value_or(0);
  for (const WeightSample& sample : group.weights) weight_squares_ += sample.SumOfSquares();
  if (--missing_ > 0) return;
  figures_ = {};
  if (gradient_known_) figures_.gradient_norm = std::sqrt(gradient_squares_);
  // Weights that are all 0 have no ratio.
  if (weights_known_ && weight_squares_ > 0) figures_.update_ratio = std::sqrt(change_squares_ / weight_squares_);
}

}  // namespace ballast
