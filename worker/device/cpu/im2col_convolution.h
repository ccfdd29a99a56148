// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "worker/device/cpu/convolution.h"

namespace ballast {

// Copies the windows of a few images at a time into the rows of a matrix and multiplies it by the filters with
// OpenBLAS, whose number of threads the caller has set.
std::unique_ptr<Convolution> MakeIm2colConvolution();

}  // namespace ballast
