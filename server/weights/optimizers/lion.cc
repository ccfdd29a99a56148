// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/elementwise_optimizer.h"
#include "server/weights/optimizers/optimizer_kind.h"
#include "server/weights/optimizers/schedule.h"

namespace ballast {
namespace {

// c = beta1 * m + (1 - beta1) * g; w = (1 - lr * weight_decay) * w - lr * sign(c); m = beta2 * m + (1 - beta2) * g
// (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2). The sign of 0 is 0, that of NaN is
// NaN.
struct Lion {
  static constexpr int kSlots = 1;
  static constexpr bool kNeedsRate = false;
  static constexpr bool kDecaysWeightsItself = true;

  explicit Lion(const v1::Optimizer& config)
      : learning_rate(config.lion().learning_rate()),
        weight_decay(config.weight_decay()),
        beta1(DecimalOf(config.lion().beta1())),
        beta2(DecimalOf(config.lion().beta2())) {}

  struct Element {
    float rate;
    float keep;
    float beta1;
    float rest1;
    float beta2;
    float rest2;

    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float w, float g, float& m) const {
      const float c = beta1 * m + rest1 * g;
      m = beta2 * m + rest2 * g;
      return keep * w - rate * (c > 0 ? 1.0f : c < 0 ? -1.0f : c);
    }
  };

  Element For(const OptimizerStep& step) const {
    const double rate = step.learning_rate;
    return {step.learning_rate,        static_cast<float>(1 - rate * weight_decay),
            static_cast<float>(beta1), static_cast<float>(1 - beta1),
            static_cast<float>(beta2), static_cast<float>(1 - beta2)};
  }

  float learning_rate;
  double weight_decay;
  double beta1;
  double beta2;
};

}  // namespace

OptimizerKind LionKind() { return ElementwiseKind<Lion>(); }

}  // namespace ballast
