// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/default_convolution.h"
#include "worker/device/cpu/onednn_convolution.h"

namespace ballast {

std::unique_ptr<Convolution> MakeDefaultConvolution(int threads) { return MakeOneDnnConvolution(threads); }

}  // namespace ballast
