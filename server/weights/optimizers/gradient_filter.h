// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/base/attributes.h"
#include "ballast/v1/tensor.pb.h"
#include "server/weights/optimizers/gradient.h"

namespace ballast {

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

 private:
  const float clip_value_;
  const float clip_norm_;
  const float weight_decay_;
};

}  // namespace ballast
