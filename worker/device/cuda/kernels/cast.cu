// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/cast.h"
#include "worker/device/cuda/kernels/half_math.h"
#include "worker/device/cuda/kernels/launch.h"

namespace ballast {
namespace {

__global__ void ToBf16Kernel(int64_t n, const float* x, uint16_t* y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) y[i] = ToBf16(x[i]);
}

__global__ void ToFp16Kernel(int64_t n, const float* x, uint16_t* y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) y[i] = ToFp16(x[i]);
}

template <HalfType type>
__global__ void FromHalfKernel(int64_t n, const uint16_t* x, ColumnBias bias, float* y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) {
    const float value = type == HalfType::kBf16 ? FromBf16(x[i]) : FromFp16(x[i]);
    y[i] = bias.values == nullptr ? value : value + bias.values[i % bias.columns];
  }
}

}  // namespace

cudaError_t LaunchToHalf(cudaStream_t stream, HalfType type, int64_t n, const float* x, uint16_t* y) {
  if (n == 0) return cudaSuccess;
  return Launch(stream, BlocksFor(n), kBlockThreads, type == HalfType::kBf16 ? ToBf16Kernel : ToFp16Kernel, n, x, y);
}

cudaError_t LaunchFromHalf(cudaStream_t stream, HalfType type, int64_t n, const uint16_t* x, ColumnBias bias,
                           float* y) {
  if (n == 0) return cudaSuccess;
  return Launch(stream, BlocksFor(n), kBlockThreads,
                type == HalfType::kBf16 ? FromHalfKernel<HalfType::kBf16> : FromHalfKernel<HalfType::kFp16>, n, x, bias,
                y);
}

}  // namespace ballast
