// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/default_convolution.h"
#include "worker/device/cpu/im2col_convolution.h"

namespace ballast {

std::unique_ptr<Convolution> MakeDefaultConvolution(int) { return MakeIm2colConvolution(); }

}  // namespace ballast
