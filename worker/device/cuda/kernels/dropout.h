// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/cuda/kernels/philox_math.h"

namespace ballast {

// Like Device::Dropout, for elements of any one type; `rate` is above 0. If `seed` is not null, seed and step are
// read from it, on the GPU, instead of from the key.
cudaError_t LaunchDropout(cudaStream_t stream, float rate, const DropoutKey& key, const uint64_t* seed, int64_t n,
                          ConstElements x, Elements y);

// Writes seed[0] = value and seed[1] = step.
cudaError_t LaunchSetDropoutSeed(cudaStream_t stream, uint64_t value, uint64_t step, uint64_t* seed);

}  // namespace ballast
