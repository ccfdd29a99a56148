// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/device_types.h"

namespace ballast {

// y[i] = f(x[i]). y may be x.
cudaError_t LaunchActivate(cudaStream_t stream, Activation f, int64_t n, const float* x, float* y);
// dx[i] = dy[i] * f'(x[i]). dx may be dy.
cudaError_t LaunchActivateBackward(cudaStream_t stream, Activation f, int64_t n, const float* x, const float* dy,
                                   float* dx);

}  // namespace ballast
