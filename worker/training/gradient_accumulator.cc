// SPDX-License-Identifier: Apache-2.0
#include "worker/training/gradient_accumulator.h"

namespace ballast {

void GradientAccumulator::Add(absl::Span<const float> gradient, uint32_t examples) {
  sum_.resize(gradient.size());
  const bool first = examples_ == 0;
  const float weight = static_cast<float>(examples);
  for (size_t i = 0; i < gradient.size(); ++i) sum_[i] = (first ? 0 : sum_[i]) + weight * gradient[i];
  examples_ += examples;
}

absl::Span<const float> GradientAccumulator::TakeMean() {
  if (examples_ == 0) return {};
  const float share = static_cast<float>(1.0 / static_cast<double>(examples_));
  for (float& element : sum_) element *= share;
  examples_ = 0;
  return sum_;
}

void GradientAccumulator::Step(float learning_rate, absl::Span<float> weights) {
  const absl::Span<const float> mean = TakeMean();
  if (mean.empty()) return;
  if (!stepped_) before_.assign(weights.begin(), weights.end());
  stepped_ = true;
  for (size_t i = 0; i < weights.size(); ++i) weights[i] -= learning_rate * mean[i];
}

absl::Span<const float> GradientAccumulator::TakeChange(absl::Span<const float> weights) {
  if (!stepped_) return {};
  for (size_t i = 0; i < weights.size(); ++i) before_[i] -= weights[i];
  stepped_ = false;
  return before_;
}

}  // namespace ballast
