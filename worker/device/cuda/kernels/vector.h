// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

// Launchers of operations on n elements, all of one type in one call. They launch nothing if n is 0.
namespace ballast {

cudaError_t LaunchFill(cudaStream_t stream, float value, int64_t n, Elements y);
cudaError_t LaunchScale(cudaStream_t stream, float alpha, int64_t n, Elements x);
// y[i] = y[i] + alpha * x[i].
cudaError_t LaunchAxpy(cudaStream_t stream, float alpha, int64_t n, ConstElements x, Elements y);
// y[i] = a[i] + b[i].
cudaError_t LaunchAdd(cudaStream_t stream, int64_t n, ConstElements a, ConstElements b, Elements y);

}  // namespace ballast
