// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Launchers of operations on n elements each. Where n is 0 nothing is launched.
namespace ballast {

// y[i] = value.
cudaError_t LaunchFill(cudaStream_t stream, float value, int64_t n, float* y);
// x[i] = alpha * x[i].
cudaError_t LaunchScale(cudaStream_t stream, float alpha, int64_t n, float* x);
// y[i] = y[i] + alpha * x[i].
cudaError_t LaunchAxpy(cudaStream_t stream, float alpha, int64_t n, const float* x, float* y);
// y[i] = a[i] + b[i].
cudaError_t LaunchAdd(cudaStream_t stream, int64_t n, const float* a, const float* b, float* y);

}  // namespace ballast
