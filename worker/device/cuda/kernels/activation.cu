// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/activation.h"
#include "worker/device/cuda/kernels/activation_math.h"
#include "worker/device/cuda/kernels/launch.h"

namespace ballast {
namespace {

template <Activation f>
__global__ void ActivateKernel(int64_t n, const float* x, float* y) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) y[i] = Activated<f>(x[i]);
}

template <Activation f>
__global__ void ActivateBackwardKernel(int64_t n, const float* x, const float* dy, float* dx) {
  for (int64_t i = FirstElement(); i < n; i += ElementStride()) dx[i] = ActivationGradient<f>(x[i], dy[i]);
}

}  // namespace

cudaError_t LaunchActivate(cudaStream_t stream, Activation f, int64_t n, const float* x, float* y) {
  if (n == 0) return cudaSuccess;
  switch (f) {
    case Activation::kRelu:
      return Launch(stream, BlocksFor(n), kBlockThreads, ActivateKernel<Activation::kRelu>, n, x, y);
    case Activation::kGelu:
      return Launch(stream, BlocksFor(n), kBlockThreads, ActivateKernel<Activation::kGelu>, n, x, y);
    case Activation::kTanh:
      return Launch(stream, BlocksFor(n), kBlockThreads, ActivateKernel<Activation::kTanh>, n, x, y);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchActivateBackward(cudaStream_t stream, Activation f, int64_t n, const float* x, const float* dy,
                                   float* dx) {
  if (n == 0) return cudaSuccess;
  switch (f) {
    case Activation::kRelu:
      return Launch(stream, BlocksFor(n), kBlockThreads, ActivateBackwardKernel<Activation::kRelu>, n, x, dy, dx);
    case Activation::kGelu:
      return Launch(stream, BlocksFor(n), kBlockThreads, ActivateBackwardKernel<Activation::kGelu>, n, x, dy, dx);
    case Activation::kTanh:
      return Launch(stream, BlocksFor(n), kBlockThreads, ActivateBackwardKernel<Activation::kTanh>, n, x, dy, dx);
  }
  return cudaErrorInvalidValue;
}

}  // namespace ballast
