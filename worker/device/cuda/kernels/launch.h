// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace ballast {

inline constexpr int kBlockThreads = 256;
inline constexpr int kWarpThreads = 32;

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(Parameters...),
                   Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

inline constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Number of blocks for a kernel whose threads stride over n > 0 elements: one thread per element, up to a limit that
// keeps the largest GPU busy several times over.
inline dim3 BlocksFor(int64_t n) {
  constexpr int64_t kMax = 8192;
  const int64_t blocks = CeilDivide(n, kBlockThreads);
  return dim3(static_cast<unsigned>(blocks < kMax ? blocks : kMax));
}

// In a kernel: this thread's first element, and the distance to its next one.
__device__ inline int64_t FirstElement() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t ElementStride() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace ballast
