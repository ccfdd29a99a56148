// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ballast {

// x[i] = alpha * x[i]; sets *not_finite = 1 if an x[i] was infinite or NaN, otherwise leaves it unchanged. Launches
// nothing if n is 0.
cudaError_t LaunchScaleAndCheck(cudaStream_t stream, float alpha, int64_t n, float* x, float* not_finite);

}  // namespace ballast
