// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ballast {

// Floats of scratch memory that LaunchSumRows needs.
int64_t SumRowsScratch(int64_t rows, int64_t columns);
// sums[j] = sum over i of x[i][j].
cudaError_t LaunchSumRows(cudaStream_t stream, const float* x, int64_t rows, int64_t columns, float* scratch,
                          float* sums);

}  // namespace ballast
