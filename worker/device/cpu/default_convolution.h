// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "worker/device/cpu/convolution.h"

namespace ballast {

// The fastest convolution that the build has: oneDNN's, or in a static binary, which Debian has no oneDNN for,
// im2col's. `threads` is 1 or more.
std::unique_ptr<Convolution> MakeDefaultConvolution(int threads);

}  // namespace ballast
