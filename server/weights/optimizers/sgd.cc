// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/elementwise_optimizer.h"
#include "server/weights/optimizers/optimizer_kind.h"

namespace ballast {
namespace {

// w -= lr * g.
struct Sgd {
  static constexpr int kSlots = 0;
  static constexpr bool kNeedsRate = false;
  static constexpr bool kDecaysWeightsItself = false;

  explicit Sgd(const v1::Optimizer& config) : learning_rate(config.sgd().learning_rate()) {}

  struct Element {
    float rate;

    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float w, float g) const { return w - rate * g; }
  };

  Element For(const OptimizerStep& step) const { return {step.learning_rate}; }

  float learning_rate;
};

}  // namespace

OptimizerKind SgdKind() { return ElementwiseKind<Sgd>(); }

}  // namespace ballast
