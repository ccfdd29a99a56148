// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ballast {

// The factor that a loss is multiplied by so that small gradients do not vanish in fp16, and whose inverse undoes it.
// It is halved where they overflowed and doubled after 2000 batches without that: Micikevicius et al., "Mixed precision
// training", 2018; the numbers are those of NVIDIA's guide and PyTorch's GradScaler. A power of two, so that undoing it
// rounds nothing.
// Thread safety: none.
class LossScaler {
 public:
  static constexpr float kFirst = 65536.0f;
  static constexpr uint32_t kPatience = 2000;
  // 2^-14 and 2^24. Gradients that overflow at the least scale do so because training has diverged.
  static constexpr float kLeast = 1.0f / 16384;
  static constexpr float kMost = 16777216.0f;

  float scale() const { return scale_; }
  // After a batch at this scale: whether all of its gradients were finite.
  void Update(bool finite);

 private:
  float scale_ = kFirst;
  // Finite ones since the scale changed.
  uint32_t good_ = 0;
};

}  // namespace ballast
