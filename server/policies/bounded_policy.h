// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "server/policies/slice_policy.h"

namespace ballast {

// config.bounded() must be set.
std::unique_ptr<SlicePolicy> MakeBoundedPolicy(const v1::ConsistencyPolicy& config, uint32_t workers);

}  // namespace ballast
