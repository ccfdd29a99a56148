// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Checks the limits that tensor.proto states. `workers` is 0 if it is not known: limits that depend on it are then not
// checked. INVALID_ARGUMENT names the field, got and want.
absl::Status ValidatePolicy(const v1::ConsistencyPolicy& policy, uint32_t workers);

}  // namespace ballast
