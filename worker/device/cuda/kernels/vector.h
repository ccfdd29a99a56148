// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

// Launchers of operations on n elements each, of one type in one call. Where n is 0 nothing is launched.
namespace ballast {

// y[i] = value.
cudaError_t LaunchFill(cudaStream_t stream, float value, int64_t n, Elements y);
// x[i] = alpha * x[i].
cudaError_t LaunchScale(cudaStream_t stream, float alpha, int64_t n, Elements x);
// y[i] = y[i] + alpha * x[i].
cudaError_t LaunchAxpy(cudaStream_t stream, float alpha, int64_t n, ConstElements x, Elements y);
// y[i] = a[i] + b[i].
cudaError_t LaunchAdd(cudaStream_t stream, int64_t n, ConstElements a, ConstElements b, Elements y);

}  // namespace ballast
