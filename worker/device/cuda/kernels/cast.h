// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ballast {

enum class HalfType { kBf16, kFp16 };

// y[i] = x[i] rounded to 16 bits. See half_math.h.
cudaError_t LaunchToHalf(cudaStream_t stream, HalfType type, int64_t n, const float* x, uint16_t* y);

}  // namespace ballast
