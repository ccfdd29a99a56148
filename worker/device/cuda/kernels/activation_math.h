// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>

#include "worker/device/device_types.h"

// Formulas of the activations for one element, the same as in worker/device/cpu/elementwise.cc.
namespace ballast {

// Phi(x) of the normal distribution. Uses erfc, because 1 + erf cancels if x is far below 0.
__host__ __device__ inline float NormalCdf(float x) { return 0.5f * erfcf(-x * 0.70710678f); }

template <Activation f>
__host__ __device__ inline float Activated(float x) {
  // This form passes NaN on, so that it shows in the loss.
  if constexpr (f == Activation::kRelu) return x < 0.0f ? 0.0f : x;
  if constexpr (f == Activation::kGelu) return x * NormalCdf(x);
  if constexpr (f == Activation::kTanh) return tanhf(x);
}

// dy * f'(x).
template <Activation f>
__host__ __device__ inline float ActivationGradient(float x, float dy) {
  if constexpr (f == Activation::kRelu) return x > 0.0f ? dy : 0.0f;
  if constexpr (f == Activation::kGelu) {
    const float density = 0.39894228f * expf(-0.5f * x * x);
    return dy * (NormalCdf(x) + x * density);
  }
  if constexpr (f == Activation::kTanh) {
    // 1 / cosh^2 instead of 1 - tanh^2, which cancels if tanh is near 1.
    const float cosh = coshf(x);
    return dy / cosh / cosh;
  }
}

}  // namespace ballast
