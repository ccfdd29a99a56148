// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/batch_norm.h"
#include "worker/device/cuda/kernels/column_sums.h"
#include "worker/device/cuda/kernels/launch.h"

// Forward: mean = sum(x) / rows; variance = sum((x - mean)^2) / rows; y = scale * (x - mean) / sqrt(variance +
// epsilon) + offset. The sums take two passes, because mean^2 would cancel in one.
//
// Backward, with h = (x - mean) * inverse_stddev: doffset = sum(dy); dscale = sum(dy * h);
// dx = scale * inverse_stddev * (dy - doffset / rows - h * dscale / rows).
namespace ballast {
namespace {

template <typename T, int W>
struct SquaredDeviations {
  static constexpr int kWidth = W;

  const T* x;
  int64_t columns;
  // Sum of each column.
  const float* sum;
  float share;

  __device__ Terms<1, W> operator()(int64_t i, int64_t j) const {
    const Pack<T, W> pack = LoadPack<W>(x + i * columns + j);
    Terms<1, W> terms;
    for (int w = 0; w < W; ++w) {
      const float d = static_cast<float>(pack.values[w]) - sum[j + w] * share;
      terms.value[0][w] = d * d;
    }
    return terms;
  }
};

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
      const float h = (static_cast<float>(xs.values[w]) - mean[j + w]) * inverse_stddev[j + w];
      const float g = static_cast<float>(gs.values[w]);
      terms.value[0][w] = g * h;
      terms.value[1][w] = g;
    }
    return terms;
  }
};

// Computes the saved statistics and the next running statistics from the sums of values and of squared deviations.
__global__ void StatisticsKernel(BatchNormCall call, RunningStatistics running, const float* sum,
                                 const float* squares) {
  const int64_t j = FirstElement();
  if (j >= call.columns) return;
  if (call.rows == 0) {
    call.mean[j] = 0.0f;
    call.inverse_stddev[j] = 0.0f;
    return;
  }
  const float share = 1.0f / static_cast<float>(call.rows);
  const float mean = sum[j] * share;
  const float variance = squares[j] * share;
  const float unbiased = call.rows > 1 ? static_cast<float>(squares[j] / static_cast<double>(call.rows - 1)) : variance;
  call.mean[j] = mean;
  call.inverse_stddev[j] = 1.0f / sqrtf(variance + running.epsilon);
  running.mean[j] = (1.0f - running.momentum) * running.mean[j] + running.momentum * mean;
  running.variance[j] = (1.0f - running.momentum) * running.variance[j] + running.momentum * unbiased;
}

// A thread's position: columns along x, rows along y.
struct Cell {
  int64_t column, row, row_stride;

  __device__ Cell()
      : column(static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x),
        row(static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y),
        row_stride(static_cast<int64_t>(gridDim.y) * blockDim.y) {}
};

template <typename T>
__global__ void NormalizeKernel(BatchNormCall call, T* y) {
  const Cell cell;
  const int64_t j = cell.column;
  if (j >= call.columns) return;
  const float mean = call.mean[j], factor = call.inverse_stddev[j] * call.scale[j], offset = call.offset[j];
  const T* const x = call.x.As<T>();
  for (int64_t i = cell.row; i < call.rows; i += cell.row_stride) {
    const int64_t at = i * call.columns + j;
    y[at] = static_cast<T>((static_cast<float>(x[at]) - mean) * factor + offset);
  }
}

template <typename T>
__global__ void InferenceKernel(BatchNormCall call, RunningStatistics running, T* y) {
  const Cell cell;
  const int64_t j = cell.column;
  if (j >= call.columns) return;
  const float mean = running.mean[j], offset = call.offset[j];
  const float factor = call.scale[j] / sqrtf(running.variance[j] + running.epsilon);
  const T* const x = call.x.As<T>();
  for (int64_t i = cell.row; i < call.rows; i += cell.row_stride) {
    const int64_t at = i * call.columns + j;
    y[at] = static_cast<T>((static_cast<float>(x[at]) - mean) * factor + offset);
  }
}

template <typename T>
__global__ void InputGradientKernel(BatchNormCall call, BatchNormGradients gradients) {
  const Cell cell;
  const int64_t j = cell.column;
  if (j >= call.columns) return;
  const float share = 1.0f / static_cast<float>(call.rows);
  const float mean = call.mean[j], inverse = call.inverse_stddev[j], factor = call.scale[j] * inverse;
  const float mean_dy = gradients.doffset[j] * share, mean_dyh = gradients.dscale[j] * share;
  const T* const x = call.x.As<T>();
  const T* const dy = gradients.dy.As<T>();
  T* const dx = gradients.dx.As<T>();
  for (int64_t i = cell.row; i < call.rows; i += cell.row_stride) {
    const int64_t at = i * call.columns + j;
    const float h = (static_cast<float>(x[at]) - mean) * inverse;
    dx[at] = static_cast<T>(factor * (static_cast<float>(dy[at]) - mean_dy - h * mean_dyh));
  }
}

__global__ void SplitSumsKernel(int64_t columns, const float* sums, float* dscale, float* doffset) {
  const int64_t j = FirstElement();
  if (j >= columns) return;
  dscale[j] = sums[j];
  doffset[j] = sums[columns + j];
}

dim3 ColumnBlock() { return dim3(kColumnTile, kRowLanes); }

dim3 ColumnGrid(const BatchNormCall& call) {
  const int64_t row_blocks = CeilDivide(call.rows, kRowLanes);
  return dim3(static_cast<unsigned>(CeilDivide(call.columns, kColumnTile)),
              static_cast<unsigned>(row_blocks < 1024 ? row_blocks : 1024));
}

dim3 VectorGrid(const BatchNormCall& call) {
  return dim3(static_cast<unsigned>(CeilDivide(call.columns, kBlockThreads)));
}

}  // namespace

// The sums of two terms, and their own scratch memory.
int64_t BatchNormScratch(int64_t rows, int64_t columns) { return 2 * columns + ColumnSumScratch<2>(rows, columns); }

namespace {

template <int W, typename T>
cudaError_t LaunchForward(cudaStream_t stream, const BatchNormCall& call, const RunningStatistics& running, T* y) {
  float* const sum = call.scratch;
  float* const squares = sum + call.columns;
  float* const partial = squares + call.columns;
  const T* const x = call.x.As<T>();
  cudaError_t error = LaunchColumnSums<1>(stream, Values<T, W>{x, call.columns}, call.rows, call.columns, partial, sum);
  if (error != cudaSuccess) return error;
  const float share = call.rows > 0 ? 1.0f / static_cast<float>(call.rows) : 0.0f;
  error = LaunchColumnSums<1>(stream, SquaredDeviations<T, W>{x, call.columns, sum, share}, call.rows, call.columns,
                              partial, squares);
  if (error != cudaSuccess) return error;
  error = Launch(stream, VectorGrid(call), kBlockThreads, StatisticsKernel, call, running, sum, squares);
  if (error != cudaSuccess || call.rows == 0) return error;
  return Launch(stream, ColumnGrid(call), ColumnBlock(), NormalizeKernel<T>, call, y);
}

template <typename T, int W>
cudaError_t LaunchBackward(cudaStream_t stream, const BatchNormCall& call, const BatchNormGradients& gradients) {
  float* const sums = call.scratch;
  const AffineTerms<T, W> terms = {call.x.As<T>(), gradients.dy.As<T>(), call.columns, call.mean, call.inverse_stddev};
  cudaError_t error =
      LaunchColumnSums<2>(stream, terms, call.rows, call.columns, call.scratch + 2 * call.columns, sums);
  if (error != cudaSuccess) return error;
  error = Launch(stream, VectorGrid(call), kBlockThreads, SplitSumsKernel, call.columns, sums, gradients.dscale,
                 gradients.doffset);
  if (error != cudaSuccess || call.rows == 0 || gradients.dx.data == nullptr) return error;
  return Launch(stream, ColumnGrid(call), ColumnBlock(), InputGradientKernel<T>, call, gradients);
}

}  // namespace

cudaError_t LaunchBatchNorm(cudaStream_t stream, const BatchNormCall& call, const RunningStatistics& running,
                            Elements y) {
  if (call.columns == 0) return cudaSuccess;
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return WithWidth<T>(call.columns, {call.x.As<T>()}, [&](auto width) {
      return LaunchForward<decltype(width)::value>(stream, call, running, y.As<T>());
    });
  });
}

cudaError_t LaunchBatchNormInference(cudaStream_t stream, const BatchNormCall& call, const RunningStatistics& running,
                                     Elements y) {
  if (call.columns == 0 || call.rows == 0) return cudaSuccess;
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, ColumnGrid(call), ColumnBlock(), InferenceKernel<T>, call, running, y.As<T>());
  });
}

cudaError_t LaunchBatchNormBackward(cudaStream_t stream, const BatchNormCall& call,
                                    const BatchNormGradients& gradients) {
  if (call.columns == 0) return cudaSuccess;
  return WithType(call.x.type, [&](auto type) {
    using T = decltype(type);
    return WithWidth<T>(call.columns, {call.x.As<T>(), gradients.dy.As<T>()},
                        [&](auto width) { return LaunchBackward<T, decltype(width)::value>(stream, call, gradients); });
  });
}

}  // namespace ballast
