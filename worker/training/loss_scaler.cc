// SPDX-License-Identifier: Apache-2.0
#include "worker/training/loss_scaler.h"

#include <algorithm>

namespace ballast {

void LossScaler::Update(bool finite) {
  if (!finite) {
    scale_ = std::max(scale_ / 2, kLeast);
    good_ = 0;
  } else if (++good_ == kPatience) {
    scale_ = std::min(scale_ * 2, kMost);
    good_ = 0;
  }
}

}  // namespace ballast
