// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/elementwise_optimizer.h"
#include "server/weights/optimizers/optimizer_kind.h"

namespace ballast {
namespace {

// v = momentum * v + g; w -= lr * (g + momentum * v): PyTorch's form (torch.optim.SGD with nesterov).
struct Nesterov {
  static constexpr int kSlots = 1;
  static constexpr bool kNeedsRate = false;
  static constexpr bool kDecaysWeightsItself = false;

  explicit Nesterov(const v1::Optimizer& config)
      : learning_rate(config.nesterov().learning_rate()), momentum(config.nesterov().momentum()) {}

  struct Element {
    float rate;
    float momentum;

    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float w, float g, float& v) const {
      v = momentum * v + g;
      return w - rate * (g + momentum * v);
    }
  };

  Element For(const OptimizerStep& step) const { return {step.learning_rate, momentum}; }

  float learning_rate;
  float momentum;
};

}  // namespace

OptimizerKind NesterovKind() { return ElementwiseKind<Nesterov>(); }

}  // namespace ballast
