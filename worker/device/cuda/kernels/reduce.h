// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "worker/device/cuda/kernels/launch.h"

// Reductions over a warp or a block, always in the same order, so that results are bitwise repeatable.
namespace ballast {

// Every thread of the warp must call it, and gets the sum.
template <typename T>
__device__ inline T WarpSum(T value) {
  for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

__device__ inline float WarpMax(float value) {
  for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// Every thread of a block of kBlockThreads must call it, and gets the sum. `slots` is shared memory for one T per
// warp and may be reused immediately.
template <typename T>
__device__ inline T BlockSum(T value, T* slots) {
  constexpr int kWarps = kBlockThreads / kWarpThreads;
  value = WarpSum(value);
  if (threadIdx.x % kWarpThreads == 0) slots[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  T sum = slots[0];
  for (int warp = 1; warp < kWarps; ++warp) sum += slots[warp];
  __syncthreads();
  return sum;
}

}  // namespace ballast
