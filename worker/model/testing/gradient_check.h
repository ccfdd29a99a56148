// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace ballast {

// Compares every gradient of a model, the text of a v1.Model, with a central difference of the model's own loss: on
// the CPU device, for random features and parameters. To check a layer, put a dense layer before it, whose gradients
// depend on the gradient of the layer's input, and one after it. The loss is computed in fp32, so the two may differ
// by a hundredth; a kink of the function, as in relu, may add to that. INVALID_ARGUMENT if the model is not valid;
// FAILED_PRECONDITION names the first gradient that differs, or a parameter whose gradients are all nearly 0, which
// would prove nothing.
absl::Status CheckGradients(const std::string& model, int64_t features);

}  // namespace ballast
