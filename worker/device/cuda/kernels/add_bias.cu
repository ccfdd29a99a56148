// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/add_bias.h"
#include "worker/device/cuda/kernels/launch.h"

namespace ballast {
namespace {

// Each thread keeps one column's bias and strides over the rows, so that no index is divided.
template <typename T>
__global__ void AddBiasKernel(const float* bias, int64_t rows, int64_t columns, T* x) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= columns) return;
  const float b = bias[j];
  const int64_t stride = static_cast<int64_t>(gridDim.y) * blockDim.y;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; i < rows; i += stride) {
    T& to = x[i * columns + j];
    to = static_cast<T>(static_cast<float>(to) + b);
  }
}

}  // namespace

cudaError_t LaunchAddBias(cudaStream_t stream, const float* bias, int64_t rows, int64_t columns, Elements x) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const dim3 block(kWarpThreads, kBlockThreads / kWarpThreads);
  const int64_t row_blocks = CeilDivide(rows, block.y);
  const dim3 grid(static_cast<unsigned>(CeilDivide(columns, block.x)),
                  static_cast<unsigned>(row_blocks < 1024 ? row_blocks : 1024));
  return WithType(x.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, grid, block, AddBiasKernel<T>, bias, rows, columns, x.As<T>());
  });
}

}  // namespace ballast
