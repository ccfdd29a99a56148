// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Checks the numbers of the optimizer and its schedule against the limits in tensor.proto. INVALID_ARGUMENT names the
// first violation, got and want.
absl::Status ValidateOptimizer(const v1::Optimizer& optimizer);

// Optimizer names as in a job file: "sgd, momentum, … or ftrl".
std::string OptimizerNames();

}  // namespace ballast
