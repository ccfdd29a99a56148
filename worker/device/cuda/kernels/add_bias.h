// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

namespace ballast {

// x[i][j] += bias[j]. x may be of any type.
cudaError_t LaunchAddBias(cudaStream_t stream, const float* bias, int64_t rows, int64_t columns, Elements x);

}  // namespace ballast
