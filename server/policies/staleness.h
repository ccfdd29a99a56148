// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "server/policies/slice_policy.h"

namespace ballast {

// Updates that were applied since the values were read that the gradient was computed from.
inline uint64_t StalenessOf(const Contribution& contribution, const SliceWeights& weights) {
  return weights.version() > contribution.from_version ? weights.version() - contribution.from_version : 0;
}

// By what the learning rate of a gradient that is so stale is multiplied (Zhang et al., 2016, staleness-aware
// async-SGD, with 1 + staleness, so that a fresh gradient is taken as it is).
inline float RateScale(uint64_t staleness) { return 1.0f / (1.0f + static_cast<float>(staleness)); }

}  // namespace ballast
