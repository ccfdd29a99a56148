// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "server/policies/slice_policy.h"

namespace ballast {

// Number of updates applied since the values that the gradient was computed from.
inline uint64_t StalenessOf(const Contribution& contribution, const SliceWeights& weights) {
  return weights.version() > contribution.from_version ? weights.version() - contribution.from_version : 0;
}

// Factor of the learning rate for that staleness (Zhang et al., 2016, staleness-aware async-SGD, with 1 + staleness,
// so that a fresh gradient is not scaled).
inline float RateScale(uint64_t staleness) { return 1.0f / (1.0f + static_cast<float>(staleness)); }

}  // namespace ballast
