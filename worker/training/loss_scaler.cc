// SPDX-License-Identifier: Apache-2.0
#include "worker/training/loss_scaler.h"

#include <algorithm>

namespace ballast {

void LossScaler::Update(bool finite) {
  if (!finite) {
    scale_ = std::max(scale_ / 2, kMin);
    good_ = 0;
  } else if (++good_ == kGrowthInterval) {
    scale_ = std::min(scale_ * 2, kMax);
    good_ = 0;
  }
}

}  // namespace ballast
