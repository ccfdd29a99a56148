// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/device_types.h"

// All matrices of one call have elements of one type.
namespace ballast {

// y[i] = f(x[i]). y may be x.
cudaError_t LaunchActivate(cudaStream_t stream, Activation f, int64_t n, ConstElements x, Elements y);
// dx[i] = dy[i] * f'(x[i]). dx may be dy.
cudaError_t LaunchActivateBackward(cudaStream_t stream, Activation f, int64_t n, ConstElements x, ConstElements dy,
                                   Elements dx);

}  // namespace ballast
