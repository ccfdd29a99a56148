// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "absl/base/attributes.h"
#include "server/weights/optimizers/schedule.h"

namespace ballast {

// The running moments of a gradient, and the update direction they give (Kingma and Ba, "Adam: A Method for Stochastic
// Optimization", 2015, algorithm 1):
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   direction = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
struct AdamMoments {
  // Config is v1::Optimizer::Adam or a message with the same fields.
  template <typename Config>
  explicit AdamMoments(const Config& config)
      : beta1(DecimalOf(config.beta1())), beta2(DecimalOf(config.beta2())), epsilon(DecimalOf(config.epsilon())) {}

  struct Element {
    float beta1;
    float rest1;
    float beta2;
    float rest2;
    // Factors of the direction and of the root of v.
    float scale;
    float root_scale;
    float epsilon;

    ABSL_ATTRIBUTE_ALWAYS_INLINE void Take(float g, float& m, float& v) const {
      m = beta1 * m + rest1 * g;
      v = beta2 * v + rest2 * (g * g);
    }
    // Includes the factor `scale` of For.
    ABSL_ATTRIBUTE_ALWAYS_INLINE float Direction(float m, float v) const {
      return scale * m / (std::sqrt(v) * root_scale + epsilon);
    }
  };

  // Returns the values for update t, from 1; directions are multiplied by `scale`.
  Element For(uint64_t t, double scale) const {
    return {static_cast<float>(beta1),
            static_cast<float>(1 - beta1),
            static_cast<float>(beta2),
            static_cast<float>(1 - beta2),
            static_cast<float>(scale / (1 - IntegerPower(beta1, t))),
            static_cast<float>(1 / std::sqrt(1 - IntegerPower(beta2, t))),
            static_cast<float>(epsilon)};
  }

  double beta1;
  double beta2;
  double epsilon;
};

}  // namespace ballast
