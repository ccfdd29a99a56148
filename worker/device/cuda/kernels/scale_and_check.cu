// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/half_math.h"
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/scale_and_check.h"

namespace ballast {
namespace {

__global__ void ScaleAndCheckKernel(float alpha, int64_t n, float* x, float* not_finite) {
  constexpr uint32_t kExponent = 0x7f800000u;
  bool finite = true;
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) {
    const float value = x[i];
    finite = finite && (BitsOf(value) & kExponent) != kExponent;
    x[i] = alpha * value;
  }
  // Several threads may write it, all the same value.
  if (!finite) *not_finite = 1.0f;
}

}  // namespace

cudaError_t LaunchScaleAndCheck(cudaStream_t stream, float alpha, int64_t n, float* x, float* not_finite) {
  if (n == 0) return cudaSuccess;
  return Launch(stream, BlocksFor(n), kBlockThreads, ScaleAndCheckKernel, alpha, n, x, not_finite);
}

}  // namespace ballast
