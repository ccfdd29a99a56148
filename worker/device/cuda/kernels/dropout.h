// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/cuda/kernels/philox_math.h"

namespace ballast {

// As Device::Dropout, of any one type. `rate` is above 0. Where `seed` is not null the key's seed and step are read
// there, on the GPU.
cudaError_t LaunchDropout(cudaStream_t stream, float rate, const DropoutKey& key, const uint64_t* seed, int64_t n,
                          ConstElements x, Elements y);

// seed[0] = the seed, seed[1] = the step.
cudaError_t LaunchSetDropoutSeed(cudaStream_t stream, uint64_t value, uint64_t step, uint64_t* seed);

}  // namespace ballast
