// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ballast {

// x[i] = alpha * x[i]; *not_finite = 1 where an x[i] was infinite or NaN, else it stays as it is. Where n is 0 nothing
// is launched.
cudaError_t LaunchScaleAndCheck(cudaStream_t stream, float alpha, int64_t n, float* x, float* not_finite);

}  // namespace ballast
