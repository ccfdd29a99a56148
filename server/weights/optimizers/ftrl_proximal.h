// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "absl/base/attributes.h"
#include "server/weights/optimizers/optimizer.h"

namespace ballast {

// The terms of FTRL-proximal that its kinds share (McMahan et al., "Ad Click Prediction: a View from the Trenches",
// 2013, algorithm 1), with the learning rate of each update. With P = (beta + sqrt(n)) / lr, the weight of all proximal
// terms together, and u = 0 if |z| <= l1, otherwise z - sign(z) * l1:
//   n += g^2; z += g - (P - P of the previous update) * w; w = -u / (P + l2)
// The paper's w depends on z and n alone, so before the first update it is 0 whatever the initial weights are, unless
// those were set, which makes them the center of the first proximal term.
struct FtrlProximal {
  // Config is v1::Optimizer::Ftrl or a message with the same fields.
  template <typename Config>
  explicit FtrlProximal(const Config& config) : beta(config.beta()), l1(config.l1()), l2(config.l2()) {}

  struct Element {
    float inverse_rate;
    float beta;
    float l1;
    float l2;
    // 0 in the first update, unless it starts from set weights; otherwise 1.
    float trust;

    // P + l2.
    ABSL_ATTRIBUTE_ALWAYS_INLINE float Weight(float n) const { return (beta + std::sqrt(n)) * inverse_rate + l2; }
    // z - u: l1's part of z.
    ABSL_ATTRIBUTE_ALWAYS_INLINE float Clamp(float z) const { return z > l1 ? l1 : (z < -l1 ? -l1 : z); }
  };

  // `step.learning_rate` is above 0.
  Element For(const OptimizerStep& step) const {
    return {static_cast<float>(1.0 / std::max(step.learning_rate, kSmallestRate)), beta, l1, l2,
            step.update == 1 && !step.begins_from_weights ? 0.0f : 1.0f};
  }

  // Lower rates are raised to this one, to keep P in float's range. Neither moves a weight by more than 1e-30.
  static constexpr float kSmallestRate = 1e-30f;

  float beta;
  float l1;
  float l2;
};

}  // namespace ballast
