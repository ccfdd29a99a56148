// SPDX-License-Identifier: Apache-2.0
#include "server/optimizers/ftrl.h"

#include <algorithm>
#include <cmath>

#include "server/optimizers/elementwise_optimizer.h"

namespace ballast {
namespace {

// FTRL-proximal (McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013, algorithm 1):
//   sigma = (sqrt(n + g^2) - sqrt(n)) / lr; z += g - sigma * w; n += g^2
//   w = 0 where |z| <= l1, else -(z - sign(z) * l1) / ((beta + sqrt(n)) / lr + l2)
// The paper's w follows from z and n alone, so before the first update it is 0 whatever the initial weights are.
struct Ftrl {
  static constexpr int kSlots = 2;
  static constexpr bool kDecaysWeightsItself = false;

  explicit Ftrl(const v1::Optimizer& config)
      : learning_rate(config.ftrl().learning_rate()),
        beta(config.ftrl().has_beta() ? config.ftrl().beta() : 1.0f),
        l1(config.ftrl().l1()),
        l2(config.ftrl().l2()) {}

  struct Element {
    float inverse_rate;
    float beta;
    float l1;
    float l2;
    // 0 in the first update.
    float trust;

    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float w, float g, float& z, float& n) const {
      const float next = n + g * g;
      const float root = std::sqrt(next);
      const float sigma = (root - std::sqrt(n)) * inverse_rate;
      const float moved = z + (g - sigma * (trust * w));
      const float over = std::fabs(moved) - l1;
      const float slope = (beta + root) * inverse_rate + l2;
      const float size = (over <= 0 ? 0.0f : over) / (slope > 0 ? slope : 1.0f);
      z = moved;
      n = next;
      return moved > 0 ? 0.0f - size : size;
    }
  };

  Element For(const OptimizerStep& step) const {
    return {static_cast<float>(1.0 / step.learning_rate), beta, l1, l2, step.update == 1 ? 0.0f : 1.0f};
  }

  float learning_rate;
  float beta;
  float l1;
  float l2;
};

// At a rate of 0, by which the rule cannot divide, nothing changes.
class FtrlOptimizer : public ElementwiseOptimizer<Ftrl> {
 public:
  using ElementwiseOptimizer::ElementwiseOptimizer;

  void Apply(const OptimizerStep& step, const Gradient& gradient, const OptimizerState& state) const override {
    if (step.learning_rate > 0) return ElementwiseOptimizer::Apply(step, gradient, state);
    if (state.updated != state.weights) std::copy_n(state.weights, gradient.size(), state.updated);
  }
};

}  // namespace

std::unique_ptr<Optimizer> MakeFtrl(const v1::Optimizer& config, InstructionSet set) {
  return std::make_unique<FtrlOptimizer>(config, set);
}

}  // namespace ballast
