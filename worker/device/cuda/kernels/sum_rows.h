// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

namespace ballast {

// Number of scratch floats that LaunchSumRows needs.
int64_t SumRowsScratch(int64_t rows, int64_t columns);
// sums[j] = sum over i of x[i][j], in fp32. x may be of any type.
cudaError_t LaunchSumRows(cudaStream_t stream, ConstElements x, int64_t rows, int64_t columns, float* scratch,
                          float* sums);

}  // namespace ballast
