// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include "absl/base/attributes.h"
#include "ballast/v1/tensor.pb.h"
#include "common/simd/instruction_set.h"
#include "server/weights/optimizers/gradient.h"

namespace ballast {

// Owns the sum of the squares of a slice's elements. The square of element i goes to lane i % kLanes, so the bits
// depend neither on the cuts between blocks nor on the instruction set.
// Thread safety: none.
class SquareSum {
 public:
  static constexpr size_t kLanes = 16;

  // Calls take(i, lane) for each i below `n`, where i is element first + i of the slice. For use in an instruction
  // set's loop: whole groups of lanes are vectorized if `take` is ABSL_ATTRIBUTE_ALWAYS_INLINE and writes nothing
  // that it reads for another i.
  template <typename Take>
  ABSL_ATTRIBUTE_ALWAYS_INLINE static void ForEachLane(size_t first, size_t n, Take take) {
    size_t i = 0;
    for (; i < n && (first + i) % kLanes != 0; ++i) take(i, (first + i) % kLanes);
    for (; i + kLanes <= n; i += kLanes) {
      BALLAST_INDEPENDENT_ITERATIONS
      for (size_t lane = 0; lane < kLanes; ++lane) take(i + lane, lane);
    }
    for (; i < n; ++i) take(i, (first + i) % kLanes);
  }

  ABSL_ATTRIBUTE_ALWAYS_INLINE void Take(size_t lane, float x) {
    lanes_[lane] += static_cast<double>(x) * static_cast<double>(x);
  }

  ABSL_ATTRIBUTE_ALWAYS_INLINE double Sum() const {
    double sum = 0;
    for (double lane : lanes_) sum += lane;
    return sum;
  }
  // The square root of the sum.
  ABSL_ATTRIBUTE_ALWAYS_INLINE double Norm() const { return std::sqrt(Sum()); }

 private:
  // Double, because it holds the square of a float exactly and does not overflow.
  double lanes_[kLanes] = {};
};

// Prepares a gradient for an optimizer's rule: scales it, clips it by value, clips it by norm, and adds weight decay,
// in this order. Thread safety: immutable.
class GradientFilter {
 public:
  // `weight_decay` is the decay added here; 0 if the rule decays weights itself.
  GradientFilter(const v1::Optimizer& config, float weight_decay);

  // The values of one update. Steps that are not configured change no element.
  struct Element {
    float scale;
    float most;
    float norm_scale;
    float weight_decay;

    // NaN stays NaN.
    ABSL_ATTRIBUTE_ALWAYS_INLINE float Clipped(float g) const {
      g = scale * g;
      g = g > most ? most : g;
      return g < -most ? -most : g;
    }
    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float g, float w) const {
      return norm_scale * Clipped(g) + weight_decay * w;
    }
  };

  // Reads the whole gradient if it is clipped by norm.
  Element For(float scale, const Gradient& gradient) const;

  // Same for a row's gradient of `dim` elements. For use in an instruction set's loop.
  ABSL_ATTRIBUTE_ALWAYS_INLINE Element ForRow(float scale, const float* gradient, size_t dim) const {
    Element element = Unclipped(scale);
    if (clip_norm_ <= 0) return element;
    SquareSum squares;
    const auto take = [&](size_t i, size_t lane)
                          ABSL_ATTRIBUTE_ALWAYS_INLINE { squares.Take(lane, element.Clipped(gradient[i])); };
    SquareSum::ForEachLane(0, dim, take);
    element.norm_scale = NormScale(squares);
    return element;
  }

 private:
  // The values for a gradient that is not clipped by norm.
  ABSL_ATTRIBUTE_ALWAYS_INLINE Element Unclipped(float scale) const { return {scale, clip_value_, 1, weight_decay_}; }
  ABSL_ATTRIBUTE_ALWAYS_INLINE float NormScale(const SquareSum& squares) const {
    const double norm = squares.Norm();
    return norm > clip_norm_ ? static_cast<float>(clip_norm_ / norm) : 1.0f;
  }

  const float clip_value_;
  const float clip_norm_;
  const float weight_decay_;
};

}  // namespace ballast
