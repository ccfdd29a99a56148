// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ballast {

// x[i][j] += bias[j].
cudaError_t LaunchAddBias(cudaStream_t stream, const float* bias, int64_t rows, int64_t columns, float* x);

}  // namespace ballast
