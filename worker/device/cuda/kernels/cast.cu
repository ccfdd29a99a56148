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

__global__ void FromBf16Kernel(int64_t n, const uint16_t* x, float* y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) y[i] = FromBf16(x[i]);
}

__global__ void FromFp16Kernel(int64_t n, const uint16_t* x, float* y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) y[i] = FromFp16(x[i]);
}

}  // namespace

cudaError_t LaunchToHalf(cudaStream_t stream, HalfType type, int64_t n, const float* x, uint16_t* y) {
  if (n == 0) return cudaSuccess;
  return Launch(stream, BlocksFor(n), kBlockThreads, type == HalfType::kBf16 ? ToBf16Kernel : ToFp16Kernel, n, x, y);
}

cudaError_t LaunchFromHalf(cudaStream_t stream, HalfType type, int64_t n, const uint16_t* x, float* y) {
  if (n == 0) return cudaSuccess;
  return Launch(stream, BlocksFor(n), kBlockThreads, type == HalfType::kBf16 ? FromBf16Kernel : FromFp16Kernel, n, x,
                y);
}

}  // namespace ballast
