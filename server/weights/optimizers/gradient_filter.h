// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/base/attributes.h"
#include "ballast/v1/tensor.pb.h"
#include "common/simd/instruction_set.h"
#include "server/weights/optimizers/gradient.h"

namespace ballast {

// What becomes of a gradient before an optimizer's rule sees it: it is scaled, clipped by value, clipped by norm, and
// weight decay is added, in this order. Thread safety: immutable.
class GradientFilter {
 public:
  // `weight_decay` is what is added here: none where the rule decays weights by itself.
  GradientFilter(const v1::Optimizer& config, float weight_decay, InstructionSet set);

  // One update's numbers. Where nothing is set, what an element goes through does not change it.
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

  // Goes over the gradient where it is to be clipped by norm.
  Element For(float scale, const Gradient& gradient) const;

 private:
  const float clip_value_;
  const float clip_norm_;
  const float weight_decay_;
  const InstructionSet set_;
};

}  // namespace ballast
