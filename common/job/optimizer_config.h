// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Whether the optimizer's and its schedule's numbers keep the limits that tensor.proto states. INVALID_ARGUMENT names
// the first that does not, got and want.
absl::Status ValidateOptimizer(const v1::Optimizer& optimizer);

// The optimizers that there are, as a job file names them: "sgd, momentum, … or ftrl".
std::string OptimizerNames();

}  // namespace ballast
