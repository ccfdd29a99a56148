// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/adam_moments.h"
#include "server/weights/optimizers/elementwise_optimizer.h"
#include "server/weights/optimizers/optimizer_kind.h"

namespace ballast {
namespace {

// w -= lr * direction, with the direction of AdamMoments.
struct Adam {
  static constexpr int kSlots = 2;
  static constexpr bool kNeedsRate = false;
  static constexpr bool kDecaysWeightsItself = false;

  explicit Adam(const v1::Optimizer& config) : learning_rate(config.adam().learning_rate()), moments(config.adam()) {}

  struct Element {
    AdamMoments::Element moments;

    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float w, float g, float& m, float& v) const {
      moments.Take(g, m, v);
      return w - moments.Direction(m, v);
    }
  };

  Element For(const OptimizerStep& step) const { return {moments.For(step.update, step.learning_rate)}; }

  void PrepareForRows() { moments.Tabulate(); }

  float learning_rate;
  AdamMoments moments;
};

}  // namespace

OptimizerKind AdamKind() { return ElementwiseKind<Adam>(); }

}  // namespace ballast
