// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/loss.h"
#include "worker/device/cuda/kernels/reduce.h"
#include "worker/device/device_types.h"

namespace ballast {
namespace {

// A value and its column.
struct Place {
  float value;
  int64_t column;
};

// The larger value; the first of equal ones. A comparison with NaN is false, so a NaN in `a` stays.
__device__ Place Larger(Place a, Place b) {
  const bool second = b.value > a.value || (b.value == a.value && b.column < a.column);
  return second ? b : a;
}

__device__ Place WarpLargest(Place place) {
  for (int offset = kWarpThreads / 2; offset > 0; offset /= 2) {
    const Place other = {__shfl_xor_sync(0xffffffffu, place.value, offset),
                         __shfl_xor_sync(0xffffffffu, place.column, offset)};
    place = Larger(place, other);
  }
  return place;
}

// One warp handles one row.
template <typename T>
__global__ void SoftmaxCrossEntropyKernel(LossCall call) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kBlockThreads / kWarpThreads) + threadIdx.x / kWarpThreads;
  // All threads of the warp return together.
  if (row >= call.rows) return;
  const T* const x = call.outputs.As<T>() + row * call.columns;
  Place largest = {-INFINITY, call.columns};
  for (int64_t j = lane; j < call.columns; j += kWarpThreads) largest = Larger(largest, {static_cast<float>(x[j]), j});
  largest = WarpLargest(largest);

  float sum = 0.0f;
  for (int64_t j = lane; j < call.columns; j += kWarpThreads) sum += expf(static_cast<float>(x[j]) - largest.value);
  sum = WarpSum(sum);

  const float label_value = call.labels[row];
  const bool is_class = label_value >= 0.0f && label_value < static_cast<float>(call.columns);
  const int64_t label = is_class ? static_cast<int64_t>(label_value) : 0;
  // Read before any lane writes the gradient, which may overwrite x.
  const float label_output = is_class ? static_cast<float>(x[label]) - largest.value : NAN;
  __syncwarp();
  if (lane == 0) {
    call.scratch[2 * row] = logf(sum) - label_output;
    call.scratch[2 * row + 1] = largest.column == label ? 1.0f : 0.0f;
  }
  if (call.gradient.data == nullptr) return;
  T* const dx = call.gradient.As<T>() + row * call.columns;
  const float share = call.gradient_scale / static_cast<float>(call.rows);
  for (int64_t j = lane; j < call.columns; j += kWarpThreads) {
    const float p = expf(static_cast<float>(x[j]) - largest.value) / sum;
    dx[j] = static_cast<T>((j == label ? p - 1.0f : p) * share);
  }
}

template <typename T>
__global__ void MeanSquaredErrorKernel(LossCall call) {
  const float share = call.gradient_scale / static_cast<float>(call.rows);
  for (int64_t row = FirstElement(); row < call.rows; row += ElementStride()) {
    const float error = static_cast<float>(call.outputs.As<T>()[row]) - call.labels[row];
    call.scratch[2 * row] = error * error;
    call.scratch[2 * row + 1] = 0.0f;
    if (call.gradient.data != nullptr) call.gradient.As<T>()[row] = static_cast<T>(2.0f * error * share);
  }
}

template <typename T>
__global__ void SigmoidCrossEntropyKernel(LossCall call) {
  const float share = call.gradient_scale / static_cast<float>(call.rows);
  for (int64_t row = FirstElement(); row < call.rows; row += ElementStride()) {
    const float x = static_cast<float>(call.outputs.As<T>()[row]);
    const float label = call.labels[row];
    // The logit of the wrong label.
    const float wrong = label == 1.0f ? -x : label == 0.0f ? x : NAN;
    // The ratio of the probability of the less likely label to that of the other.
    const float ratio = expf(-fabsf(x));
    // This form passes NaN on.
    call.scratch[2 * row] = (wrong < 0.0f ? 0.0f : wrong) + log1pf(ratio);
    call.scratch[2 * row + 1] = (x > 0.0f) == (label == 1.0f) ? 1.0f : 0.0f;
    if (call.gradient.data == nullptr) continue;
    const float probability = (wrong < 0.0f ? ratio : 1.0f) / (1.0f + ratio);
    call.gradient.As<T>()[row] = static_cast<T>((label == 1.0f ? -probability : probability) * share);
  }
}

// Runs as one block. Sums in double, because there may be thousands of losses.
__global__ void SumTotalsKernel(const float* scratch, int64_t rows, float* totals) {
  __shared__ double slots[kBlockThreads / kWarpThreads];
  double loss = 0.0, correct = 0.0;
  for (int64_t row = threadIdx.x; row < rows; row += kBlockThreads) {
    loss += scratch[2 * row];
    correct += scratch[2 * row + 1];
  }
  loss = BlockSum(loss, slots);
  correct = BlockSum(correct, slots);
  if (threadIdx.x != 0) return;
  totals[kLossSum] = static_cast<float>(loss);
  totals[kCorrect] = static_cast<float>(correct);
}

cudaError_t SumTotals(cudaStream_t stream, const LossCall& call) {
  return Launch(stream, dim3(1), kBlockThreads, SumTotalsKernel, call.scratch, call.rows, call.totals);
}

}  // namespace

cudaError_t LaunchSoftmaxCrossEntropy(cudaStream_t stream, const LossCall& call) {
  if (call.rows > 0) {
    const int64_t blocks = CeilDivide(call.rows, kBlockThreads / kWarpThreads);
    const cudaError_t error = WithType(call.outputs.type, [&](auto type) {
      return Launch(stream, dim3(static_cast<unsigned>(blocks)), kBlockThreads,
                    SoftmaxCrossEntropyKernel<decltype(type)>, call);
    });
    if (error != cudaSuccess) return error;
  }
  return SumTotals(stream, call);
}

cudaError_t LaunchMeanSquaredError(cudaStream_t stream, const LossCall& call) {
  if (call.rows > 0) {
    const cudaError_t error = WithType(call.outputs.type, [&](auto type) {
      return Launch(stream, BlocksFor(call.rows), kBlockThreads, MeanSquaredErrorKernel<decltype(type)>, call);
    });
    if (error != cudaSuccess) return error;
  }
  return SumTotals(stream, call);
}

cudaError_t LaunchSigmoidCrossEntropy(cudaStream_t stream, const LossCall& call) {
  if (call.rows > 0) {
    const cudaError_t error = WithType(call.outputs.type, [&](auto type) {
      return Launch(stream, BlocksFor(call.rows), kBlockThreads, SigmoidCrossEntropyKernel<decltype(type)>, call);
    });
    if (error != cudaSuccess) return error;
  }
  return SumTotals(stream, call);
}

}  // namespace ballast
