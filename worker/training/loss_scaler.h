// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ballast {

// Owns the factor that multiplies the loss so that small gradients do not underflow in fp16. The factor is halved after
// an overflow and doubled after 2000 batches without one: Micikevicius et al., "Mixed precision training", 2018, with
// the constants of NVIDIA's guide and PyTorch's GradScaler. It is a power of two, so dividing by it is exact.
// Thread safety: none.
class LossScaler {
 public:
  static constexpr float kFirst = 65536.0f;
  static constexpr uint32_t kGrowthInterval = 2000;
  // 2^-14 and 2^24. Gradients that overflow at the smallest scale show that training has diverged.
  static constexpr float kMin = 1.0f / 16384;
  static constexpr float kMax = 16777216.0f;

  float scale() const { return scale_; }
  // Call after each batch; `finite` is true if all of its gradients were finite.
  void Update(bool finite);

 private:
  float scale_ = kFirst;
  // Finite batches since the scale changed.
  uint32_t good_ = 0;
};

}  // namespace ballast
