// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "server/policies/slice_policy.h"

namespace ballast {

// config.sync() must be set.
std::unique_ptr<SlicePolicy> MakeSyncPolicy(const v1::ConsistencyPolicy& config, uint32_t workers);

// On the server, local SGD is sync over rounds: a worker's step is the number of rounds it has pushed.
// config.local_sgd() must be set.
std::unique_ptr<SlicePolicy> MakeLocalSgdPolicy(const v1::ConsistencyPolicy& config, uint32_t workers);

}  // namespace ballast
