// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "server/weights/optimizers/elementwise_optimizer.h"
#include "server/weights/optimizers/ftrl_proximal.h"
#include "server/weights/optimizers/optimizer_kind.h"

namespace ballast {
namespace {

// The rule of FtrlProximal. The previous P is not needed: the previous update left
// z = clamp(z, l1) - (previous P + l2) * w, so
//   z = clamp(z, l1) + g - (P + l2) * w
//   w = 0 if |z| <= l1, otherwise w - (g + clamp(previous z, l1) - clamp(z, l1)) / (P + l2)
// A change of the rate alone moves no weight, and rounding errors of large z do not accumulate.
struct Ftrl {
  static constexpr int kSlots = 2;
  static constexpr bool kNeedsRate = true;
  static constexpr bool kDecaysWeightsItself = false;

  explicit Ftrl(const v1::Optimizer& config) : learning_rate(config.ftrl().learning_rate()), proximal(config.ftrl()) {}

  struct Element {
    FtrlProximal::Element proximal;

    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float w, float g, float& z, float& n) const {
      const float next = n + g * g;
      const float weight = proximal.Weight(next);
      const float from = proximal.trust * w;
      const float clamped = proximal.Clamp(z);
      const float moved = clamped + g - weight * from;
      const float step = (g + (clamped - proximal.Clamp(moved))) / (weight > 0 ? weight : 1.0f);
      z = moved;
      n = next;
      return std::fabs(moved) <= proximal.l1 ? 0.0f : from - step;
    }
  };

  Element For(const OptimizerStep& step) const { return {proximal.For(step)}; }

  float learning_rate;
  FtrlProximal proximal;
};

}  // namespace

OptimizerKind FtrlKind() { return ElementwiseKind<Ftrl>(); }

}  // namespace ballast
