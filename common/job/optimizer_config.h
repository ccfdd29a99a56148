// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Checks the limits that tensor.proto states, those of the schedule included. INVALID_ARGUMENT names the field, got and
// want.
absl::Status ValidateOptimizer(const v1::Optimizer& optimizer);

}  // namespace ballast
