// SPDX-License-Identifier: Apache-2.0
#include "worker/training/gradient_unscaler.h"

#include <utility>

namespace ballast {

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
