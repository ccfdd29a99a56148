// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/activation.h"
#include "worker/device/cuda/kernels/activation_math.h"
#include "worker/device/cuda/kernels/map.h"

namespace ballast {
namespace {

template <Activation f>
struct Forward {
  __device__ float operator()(const Inputs<1>& in) const { return Activated<f>(in.x[0]); }
};

// Inputs are x and dy.
template <Activation f>
struct Backward {
  __device__ float operator()(const Inputs<2>& in) const { return ActivationGradient<f>(in.x[0], in.x[1]); }
};

}  // namespace

cudaError_t LaunchActivate(cudaStream_t stream, Activation f, int64_t n, ConstElements x, Elements y) {
  switch (f) {
    case Activation::kRelu:
      return LaunchMap<1>(stream, Forward<Activation::kRelu>(), n, {x}, y);
    case Activation::kGelu:
      return LaunchMap<1>(stream, Forward<Activation::kGelu>(), n, {x}, y);
    case Activation::kTanh:
      return LaunchMap<1>(stream, Forward<Activation::kTanh>(), n, {x}, y);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchActivateBackward(cudaStream_t stream, Activation f, int64_t n, ConstElements x, ConstElements dy,
                                   Elements dx) {
  switch (f) {
    case Activation::kRelu:
      return LaunchMap<2>(stream, Backward<Activation::kRelu>(), n, {x, dy}, dx);
    case Activation::kGelu:
      return LaunchMap<2>(stream, Backward<Activation::kGelu>(), n, {x, dy}, dx);
    case Activation::kTanh:
      return LaunchMap<2>(stream, Backward<Activation::kTanh>(), n, {x, dy}, dx);
  }
  return cudaErrorInvalidValue;
}

}  // namespace ballast
