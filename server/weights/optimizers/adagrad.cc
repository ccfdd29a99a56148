// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "server/weights/optimizers/elementwise_optimizer.h"
#include "server/weights/optimizers/optimizer_kind.h"

namespace ballast {
namespace {

// s += g^2; w -= lr * g / (sqrt(s) + epsilon) (Duchi et al., "Adaptive Subgradient Methods", 2011; like
// torch.optim.Adagrad, with epsilon outside the root).
struct Adagrad {
  static constexpr int kSlots = 1;
  static constexpr bool kNeedsRate = false;
  static constexpr bool kDecaysWeightsItself = false;

  explicit Adagrad(const v1::Optimizer& config)
      : learning_rate(config.adagrad().learning_rate()), epsilon(config.adagrad().epsilon()) {}

  struct Element {
    float rate;
    float epsilon;

    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float w, float g, float& s) const {
      s = s + g * g;
      return w - rate * g / (std::sqrt(s) + epsilon);
    }
  };

  Element For(const OptimizerStep& step) const { return {step.learning_rate, epsilon}; }

  float learning_rate;
  float epsilon;
};

}  // namespace

OptimizerKind AdagradKind() { return ElementwiseKind<Adagrad>(); }

}  // namespace ballast
