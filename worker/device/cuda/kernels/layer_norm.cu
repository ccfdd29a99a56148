// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/column_sums.h"
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/layer_norm.h"
#include "worker/device/cuda/kernels/reduce.h"

// With a row's mean and variance over its columns, and h = (x - mean) / sqrt(variance + epsilon):
//
//   forward   y = scale * h + offset
//   backward  doffset = sum over rows of dy; dscale = sum over rows of dy * h; with g = dy * scale,
//             dx = (g - mean(g) - h * mean(g * h)) / sqrt(variance + epsilon)
//
// One warp handles one row.
namespace ballast {
namespace {

constexpr int kRowsABlock = kBlockThreads / kWarpThreads;

struct RowStatistics {
  float mean;
  float inverse_stddev;
};

__device__ int WarpLane() { return static_cast<int>(threadIdx.x) % kWarpThreads; }

__device__ int64_t WarpRow() { return static_cast<int64_t>(blockIdx.x) * kRowsABlock + threadIdx.x / kWarpThreads; }

template <typename T>
__device__ RowStatistics StatisticsOf(const LayerNormCall& call, const T* x) {
  const float share = 1.0f / static_cast<float>(call.columns);
  float sum = 0.0f;
  for (int64_t j = WarpLane(); j < call.columns; j += kWarpThreads) sum += static_cast<float>(x[j]);
  const float mean = WarpSum(sum) * share;
  float squares = 0.0f;
  for (int64_t j = WarpLane(); j < call.columns; j += kWarpThreads) {
    const float d = static_cast<float>(x[j]) - mean;
    squares += d * d;
  }
  return {mean, 1.0f / sqrtf(WarpSum(squares) * share + call.epsilon)};
}

template <typename T>
__global__ void LayerNormKernel(LayerNormCall call, const float* offset, T* y) {
  const int64_t row = WarpRow();
  // All threads of the warp return together.
  if (row >= call.rows) return;
  const T* const x = call.x.As<T>() + row * call.columns;
  const RowStatistics of_row = StatisticsOf(call, x);
  for (int64_t j = WarpLane(); j < call.columns; j += kWarpThreads) {
    const float h = (static_cast<float>(x[j]) - of_row.mean) * of_row.inverse_stddev;
    y[row * call.columns + j] = static_cast<T>(h * call.scale[j] + offset[j]);
  }
}

// Writes the statistics of the rows, means first, for the sums over columns; also dx if requested.
template <typename T>
__global__ void RowGradientKernel(LayerNormCall call, LayerNormGradients gradients) {
  const int64_t row = WarpRow();
  if (row >= call.rows) return;
  const T* const x = call.x.As<T>() + row * call.columns;
  const T* const dy = gradients.dy.As<T>() + row * call.columns;
  const RowStatistics of_row = StatisticsOf(call, x);
  if (WarpLane() == 0) {
    gradients.scratch[row] = of_row.mean;
    gradients.scratch[call.rows + row] = of_row.inverse_stddev;
  }
  if (gradients.dx.data == nullptr) return;
  T* const dx = gradients.dx.As<T>() + row * call.columns;
  float sum_g = 0.0f, sum_gh = 0.0f;
  for (int64_t j = WarpLane(); j < call.columns; j += kWarpThreads) {
    const float g = static_cast<float>(dy[j]) * call.scale[j];
    sum_g += g;
    sum_gh += g * (static_cast<float>(x[j]) - of_row.mean) * of_row.inverse_stddev;
  }
  const float share = 1.0f / static_cast<float>(call.columns);
  const float mean_g = WarpSum(sum_g) * share, mean_gh = WarpSum(sum_gh) * share;
  for (int64_t j = WarpLane(); j < call.columns; j += kWarpThreads) {
    const float h = (static_cast<float>(x[j]) - of_row.mean) * of_row.inverse_stddev;
    const float g = static_cast<float>(dy[j]) * call.scale[j];
    dx[j] = static_cast<T>((g - mean_g - h * mean_gh) * of_row.inverse_stddev);
  }
}

template <typename T, int W>
struct AffineTerms {
  static constexpr int kWidth = W;

  const T* x;
  const T* dy;
  int64_t columns;
  const float* mean;
  const float* inverse_stddev;

  __device__ Terms<2, W> operator()(int64_t i, int64_t j) const {
    const int64_t at = i * columns + j;
    const Pack<T, W> xs = LoadPack<W>(x + at), gs = LoadPack<W>(dy + at);
    Terms<2, W> terms;
    for (int w = 0; w < W; ++w) {
      const float g = static_cast<float>(gs.values[w]);
      terms.value[0][w] = g * (static_cast<float>(xs.values[w]) - mean[i]) * inverse_stddev[i];
      terms.value[1][w] = g;
    }
    return terms;
  }
};

__global__ void SplitSumsKernel(int64_t columns, const float* sums, float* dscale, float* doffset) {
  const int64_t j = FirstElement();
  if (j >= columns) return;
  dscale[j] = sums[j];
  doffset[j] = sums[columns + j];
}

dim3 RowGrid(const LayerNormCall& call) { return dim3(static_cast<unsigned>(CeilDivide(call.rows, kRowsABlock))); }

}  // namespace

cudaError_t LaunchLayerNorm(cudaStream_t stream, const LayerNormCall& call, const float* offset, Elements y) {
  if (call.rows == 0 || call.columns == 0) return cudaSuccess;
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, RowGrid(call), kBlockThreads, LayerNormKernel<T>, call, offset, y.As<T>());
  });
}

// The statistics of the rows, the sums of two terms, and their own scratch memory.
int64_t LayerNormScratch(int64_t rows, int64_t columns) {
  return 2 * rows + 2 * columns + ColumnSumScratch<2>(rows, columns);
}

namespace {

template <typename T, int W>
cudaError_t LaunchBackward(cudaStream_t stream, const LayerNormCall& call, const LayerNormGradients& gradients) {
  float* const mean = gradients.scratch;
  float* const inverse_stddev = mean + call.rows;
  float* const sums = inverse_stddev + call.rows;
  if (call.rows > 0) {
    const cudaError_t error = Launch(stream, RowGrid(call), kBlockThreads, RowGradientKernel<T>, call, gradients);
    if (error != cudaSuccess) return error;
  }
  const AffineTerms<T, W> terms = {call.x.As<T>(), gradients.dy.As<T>(), call.columns, mean, inverse_stddev};
  const cudaError_t error = LaunchColumnSums<2>(stream, terms, call.rows, call.columns, sums + 2 * call.columns, sums);
  if (error != cudaSuccess) return error;
  return Launch(stream, dim3(static_cast<unsigned>(CeilDivide(call.columns, kBlockThreads))), kBlockThreads,
                SplitSumsKernel, call.columns, sums, gradients.dscale, gradients.doffset);
}

}  // namespace

cudaError_t LaunchLayerNormBackward(cudaStream_t stream, const LayerNormCall& call,
                                    const LayerNormGradients& gradients) {
  if (call.columns == 0) return cudaSuccess;
  return WithType(call.x.type, [&](auto type) {
    using T = decltype(type);
    return WithWidth<T>(call.columns, {call.x.As<T>(), gradients.dy.As<T>()},
                        [&](auto width) { return LaunchBackward<T, decltype(width)::value>(stream, call, gradients); });
  });
}

}  // namespace ballast
