// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/elementwise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "absl/base/casts.h"
#include "common/simd/instruction_set.h"
#include "worker/device/philox.h"

namespace ballast {
namespace {

constexpr float kSqrtHalf = 0.70710678f;
constexpr float kInverseSqrtTwoPi = 0.39894228f;

// Phi(x) of the normal distribution. Uses erfc, because 1 + erf cancels if x is far below 0.
float NormalCdf(float x) { return 0.5f * std::erfc(-x * kSqrtHalf); }

}  // namespace

void Activate(Activation f, absl::Span<const float> x, absl::Span<float> y) {
  const size_t n = x.size();
  switch (f) {
    case Activation::kRelu:
      // This form passes NaN on, so that it shows in the loss. x may be y, for which the compiler would take elements
      // one by one.
      BALLAST_INDEPENDENT_ITERATIONS
      for (size_t i = 0; i < n; ++i) y[i] = x[i] < 0.0f ? 0.0f : x[i];
      return;
    case Activation::kGelu:
      for (size_t i = 0; i < n; ++i) y[i] = x[i] * NormalCdf(x[i]);
      return;
    case Activation::kTanh:
      for (size_t i = 0; i < n; ++i) y[i] = std::tanh(x[i]);
      return;
  }
}

void ActivateBackward(Activation f, absl::Span<const float> x, absl::Span<const float> dy, absl::Span<float> dx) {
  const size_t n = x.size();
  switch (f) {
    case Activation::kRelu:
      // Reads dy in both cases, because otherwise the compiler generates a branch.
      BALLAST_INDEPENDENT_ITERATIONS
      for (size_t i = 0; i < n; ++i) {
        const float gradient = dy[i];
        dx[i] = x[i] > 0.0f ? gradient : 0.0f;
      }
      return;
    case Activation::kGelu:
      for (size_t i = 0; i < n; ++i) {
        const float density = kInverseSqrtTwoPi * std::exp(-0.5f * x[i] * x[i]);
        dx[i] = dy[i] * (NormalCdf(x[i]) + x[i] * density);
      }
      return;
    case Activation::kTanh:
      for (size_t i = 0; i < n; ++i) {
        // 1 / cosh^2 instead of 1 - tanh^2, which cancels if tanh is near 1.
        const float cosh = std::cosh(x[i]);
        dx[i] = dy[i] / cosh / cosh;
      }
      return;
  }
}

bool ScaleAndCheck(float alpha, absl::Span<float> x) {
  // Tests the bits, so that the loop vectorizes.
  constexpr uint32_t kExponent = 0x7F800000;
  bool finite = true;
  for (float& element : x) {
    finite &= (absl::bit_cast<uint32_t>(element) & kExponent) != kExponent;
    element *= alpha;
  }
  return finite;
}

void Axpy(float alpha, absl::Span<const float> x, absl::Span<float> y) {
  for (size_t i = 0; i < x.size(); ++i) y[i] += alpha * x[i];
}

void Add(absl::Span<const float> a, absl::Span<const float> b, absl::Span<float> y) {
  for (size_t i = 0; i < y.size(); ++i) y[i] = a[i] + b[i];
}

void Dropout(float rate, const DropoutKey& key, absl::Span<const float> x, absl::Span<float> y) {
  if (rate == 0.0f) {
    if (y.data() != x.data()) std::copy(x.begin(), x.end(), y.begin());
    return;
  }
  const uint32_t threshold = static_cast<uint32_t>(std::ldexp(static_cast<double>(rate), 32));
  const float scale = 1.0f / (1.0f - rate);
  // One draw gives the words of four elements; its counter is the draw's index and the step.
  const std::array<uint32_t, 2> philox_key = {static_cast<uint32_t>(key.seed),
                                              static_cast<uint32_t>(key.seed >> 32) ^ (key.layer * 0x9E3779B9u)};
  const uint32_t step_low = static_cast<uint32_t>(key.step);
  const uint32_t step_high = static_cast<uint32_t>(key.step >> 32);
  for (size_t begin = 0; begin < x.size(); begin += 4) {
    const uint64_t draw = begin / 4;
    const std::array<uint32_t, 4> words =
        Philox({static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32), step_low, step_high}, philox_key);
    const size_t end = std::min(begin + 4, x.size());
    for (size_t i = begin; i < end; ++i) {
      const float kept = x[i] * scale;
      y[i] = words[i - begin] >= threshold ? kept : 0.0f;
    }
  }
}

}  // namespace ballast
