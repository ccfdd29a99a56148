// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "server/weights/optimizers/elementwise_optimizer.h"
#include "server/weights/optimizers/optimizer_kind.h"
#include "server/weights/optimizers/schedule.h"

namespace ballast {
namespace {

// s = alpha * s + (1 - alpha) * g^2; w -= lr * g / (sqrt(s) + epsilon) (Tieleman and Hinton, "Lecture 6.5 - rmsprop",
// 2012; like torch.optim.RMSprop, with epsilon outside the root).
struct RmsProp {
  static constexpr int kSlots = 1;
  static constexpr bool kNeedsRate = false;
  static constexpr bool kDecaysWeightsItself = false;

  explicit RmsProp(const v1::Optimizer& config)
      : learning_rate(config.rmsprop().learning_rate()),
        alpha(DecimalOf(config.rmsprop().alpha())),
        epsilon(config.rmsprop().epsilon()) {}

  struct Element {
    float rate;
    float alpha;
    float rest;
    float epsilon;

    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float w, float g, float& s) const {
      s = alpha * s + rest * (g * g);
      return w - rate * g / (std::sqrt(s) + epsilon);
    }
  };

  Element For(const OptimizerStep& step) const {
    return {step.learning_rate, static_cast<float>(alpha), static_cast<float>(1 - alpha), epsilon};
  }

  float learning_rate;
  double alpha;
  float epsilon;
};

}  // namespace

OptimizerKind RmsPropKind() { return ElementwiseKind<RmsProp>(); }

}  // namespace ballast
