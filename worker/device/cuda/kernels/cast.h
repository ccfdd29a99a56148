// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/device_types.h"

namespace ballast {

// y[i] = x[i] rounded to 16 bits. See half_math.h.
cudaError_t LaunchToHalf(cudaStream_t stream, HalfType type, int64_t n, const float* x, uint16_t* y);

// y[i] = x[i], which is exact.
cudaError_t LaunchFromHalf(cudaStream_t stream, HalfType type, int64_t n, const uint16_t* x, float* y);

}  // namespace ballast
