// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/adam_moments.h"
#include "server/weights/optimizers/elementwise_optimizer.h"
#include "server/weights/optimizers/optimizer_kind.h"

namespace ballast {
namespace {

// w *= 1 - lr * weight_decay; w -= lr * direction of AdamMoments (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", 2019, algorithm 2, in the form of torch.optim.AdamW, which multiplies the decay by lr).
struct AdamW {
  static constexpr int kSlots = 2;
  static constexpr bool kNeedsRate = false;
  static constexpr bool kDecaysWeightsItself = true;

  explicit AdamW(const v1::Optimizer& config)
      : learning_rate(config.adamw().learning_rate()), weight_decay(config.weight_decay()), moments(config.adamw()) {}

  struct Element {
    float keep;
    AdamMoments::Element moments;

    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float w, float g, float& m, float& v) const {
      moments.Take(g, m, v);
      return keep * w - moments.Direction(m, v);
    }
  };

  Element For(const OptimizerStep& step) const {
    const double rate = step.learning_rate;
    return {static_cast<float>(1 - rate * weight_decay), moments.For(step.update, rate)};
  }

  void PrepareForRows() { moments.Tabulate(); }

  float learning_rate;
  double weight_decay;
  AdamMoments moments;
};

}  // namespace

OptimizerKind AdamWKind() { return ElementwiseKind<AdamW>(); }

}  // namespace ballast
