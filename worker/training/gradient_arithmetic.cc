// SPDX-License-Identifier: Apache-2.0
#include "worker/training/gradient_arithmetic.h"

#include <algorithm>
#include <utility>

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

void LossScaler::Update(bool finite) {
  if (!finite) {
    scale_ = std::max(scale_ / 2, kMin);
    good_ = 0;
  } else if (++good_ == kGrowthInterval) {
    scale_ = std::min(scale_ * 2, kMax);
    good_ = 0;
  }
}

absl::Status GradientUnscaler::Unscale(size_t index, float factor) {
  const DeviceTensor gradient = model_.DeviceGradient(index);
  Device& device = *gradient.on.device;
  std::unique_ptr<Buffer>& flag = flags_[&device];
  if (flag == nullptr) {
    absl::StatusOr<std::unique_ptr<Buffer>> memory = device.Allocate(1);
    if (!memory.ok()) return memory.status();
    flag = *std::move(memory);
  }
  device.ScaleAndCheck(factor, gradient.elements, *flag);
  return absl::OkStatus();
}

absl::StatusOr<bool> GradientUnscaler::TakeFinite() {
  bool finite = true;
  for (const auto& [device, flag] : flags_) {
    float not_finite = 0;
    if (absl::Status status = device->Download(*flag, 0, {&not_finite, 1}); !status.ok()) return status;
    finite = finite && not_finite == 0;
    if (not_finite != 0) device->Fill(0, {flag.get(), 1, 1});
  }
  return finite;
}

}  // namespace ballast
