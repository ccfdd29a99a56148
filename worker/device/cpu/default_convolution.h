// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "worker/device/cpu/convolution.h"

namespace ballast {

// The fastest convolution in the build: oneDNN's, or im2col's in a static binary, because Debian has no static
// oneDNN. `threads` is at least 1.
std::unique_ptr<Convolution> MakeDefaultConvolution(int threads);

}  // namespace ballast
