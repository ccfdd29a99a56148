// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/elementwise_optimizer.h"
#include "server/weights/optimizers/optimizer_kind.h"

namespace ballast {
namespace {

// v = momentum * v + g; w -= lr * v: PyTorch's form (torch.optim.SGD with dampening 0), not Sutskever's, which keeps
// lr inside v.
struct Momentum {
  static constexpr int kSlots = 1;
  static constexpr bool kNeedsRate = false;
  static constexpr bool kDecaysWeightsItself = false;

  explicit Momentum(const v1::Optimizer& config)
      : learning_rate(config.momentum().learning_rate()), momentum(config.momentum().momentum()) {}

  struct Element {
    float rate;
    float momentum;

    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float w, float g, float& v) const {
      v = momentum * v + g;
      return w - rate * v;
    }
  };

  Element For(const OptimizerStep& step) const { return {step.learning_rate, momentum}; }

  float learning_rate;
  float momentum;
};

}  // namespace

OptimizerKind MomentumKind() { return ElementwiseKind<Momentum>(); }

}  // namespace ballast
