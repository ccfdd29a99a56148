// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/vector.h"

namespace ballast {
namespace {

__global__ void FillKernel(float value, int64_t n, float* y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) y[i] = value;
}

__global__ void ScaleKernel(float alpha, int64_t n, float* x) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) x[i] = alpha * x[i];
}

__global__ void AxpyKernel(float alpha, int64_t n, const float* x, float* y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) y[i] += alpha * x[i];
}

__global__ void AddKernel(int64_t n, const float* a, const float* b, float* y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) y[i] = a[i] + b[i];
}

}  // namespace

cudaError_t LaunchFill(cudaStream_t stream, float value, int64_t n, float* y) {
  if (n == 0) return cudaSuccess;
  return Launch(stream, BlocksFor(n), kBlockThreads, FillKernel, value, n, y);
}

cudaError_t LaunchScale(cudaStream_t stream, float alpha, int64_t n, float* x) {
  if (n == 0) return cudaSuccess;
  return Launch(stream, BlocksFor(n), kBlockThreads, ScaleKernel, alpha, n, x);
}

cudaError_t LaunchAxpy(cudaStream_t stream, float alpha, int64_t n, const float* x, float* y) {
  if (n == 0) return cudaSuccess;
  return Launch(stream, BlocksFor(n), kBlockThreads, AxpyKernel, alpha, n, x, y);
}

cudaError_t LaunchAdd(cudaStream_t stream, int64_t n, const float* a, const float* b, float* y) {
  if (n == 0) return cudaSuccess;
  return Launch(stream, BlocksFor(n), kBlockThreads, AddKernel, n, a, b, y);
}

}  // namespace ballast
