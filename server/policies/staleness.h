// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "server/policies/slice_policy.h"

namespace ballast {

// Number of updates applied since the values of that version.
inline uint64_t StalenessOf(uint64_t from_version, const SliceWeights& weights) {
  return weights.version() > from_version ? weights.version() - from_version : 0;
}

// Factor of the learning rate for that staleness (Zhang et al., 2016, staleness-aware async-SGD, with 1 + staleness,
// so that a fresh gradient is not scaled).
inline float RateScale(uint64_t staleness) { return 1.0f / (1.0f + static_cast<float>(staleness)); }

}  // namespace ballast
