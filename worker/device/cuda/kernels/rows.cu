// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/rows.h"

namespace ballast {
namespace {

// In both kernels one warp handles one row.
constexpr int kRowsABlock = kBlockThreads / kWarpThreads;

__device__ int64_t WarpNumber() { return static_cast<int64_t>(blockIdx.x) * kRowsABlock + threadIdx.x / kWarpThreads; }

template <typename T>
__global__ void GatherRowsKernel(const float* table, int64_t columns, const int64_t* rows, int64_t count, T* y) {
  const int64_t i = WarpNumber();
  if (i >= count) return;
  const float* const from = table + rows[i] * columns;
  for (int64_t j = threadIdx.x % kWarpThreads; j < columns; j += kWarpThreads)
    y[i * columns + j] = static_cast<T>(from[j]);
}

// One warp adds all entries of a row in order, without atomics, so that results are bitwise repeatable.
template <typename T>
__global__ void ScatterAddRowsKernel(const T* dy, int64_t columns, RowGroups groups, float* table) {
  const int64_t g = WarpNumber();
  if (g >= groups.groups) return;
  float* const to = table + groups.target[g] * columns;
  for (int64_t j = threadIdx.x % kWarpThreads; j < columns; j += kWarpThreads) {
    float sum = to[j];
    for (int64_t k = groups.begin[g]; k < groups.begin[g + 1]; ++k)
      sum += static_cast<float>(dy[groups.source[k] * columns + j]);
    to[j] = sum;
  }
}

}  // namespace

cudaError_t LaunchGatherRows(cudaStream_t stream, const float* table, int64_t columns, const int64_t* rows,
                             int64_t count, Elements y) {
  if (count == 0 || columns == 0) return cudaSuccess;
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, dim3(static_cast<unsigned>(CeilDivide(count, kRowsABlock))), kBlockThreads,
                  GatherRowsKernel<T>, table, columns, rows, count, y.As<T>());
  });
}

cudaError_t LaunchScatterAddRows(cudaStream_t stream, ConstElements dy, int64_t columns, const RowGroups& groups,
                                 float* table) {
  if (groups.groups == 0 || columns == 0) return cudaSuccess;
  return WithType(dy.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, dim3(static_cast<unsigned>(CeilDivide(groups.groups, kRowsABlock))), kBlockThreads,
                  ScatterAddRowsKernel<T>, dy.As<T>(), columns, groups, table);
  });
}

}  // namespace ballast
