// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/philox_math.h"

namespace ballast {

// As Device::Dropout. `rate` is above 0.
cudaError_t LaunchDropout(cudaStream_t stream, float rate, const DropoutKey& key, int64_t n, const float* x, float* y);

}  // namespace ballast
