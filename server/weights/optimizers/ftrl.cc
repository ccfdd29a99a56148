// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "server/weights/optimizers/elementwise_optimizer.h"
#include "server/weights/optimizers/optimizer.h"

namespace ballast {
namespace {

// Lower rates are raised to this one, to keep P in float's range. Neither moves a weight by more than 1e-30.
constexpr float kSmallestRate = 1e-30f;

// FTRL-proximal (McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013, algorithm 1), with the learning
// rate of each update. With P = (beta + sqrt(n)) / lr, the weight of all proximal terms together:
//   n += g^2; z += g - (P - P of the previous update) * w
//   w = 0 if |z| <= l1, otherwise -(z - sign(z) * l1) / (P + l2)
// The previous P is not needed: the previous update left z = clamp(z, l1) - (previous P + l2) * w, so
//   z = clamp(z, l1) + g - (P + l2) * w
//   w = 0 if |z| <= l1, otherwise w - (g + clamp(previous z, l1) - clamp(z, l1)) / (P + l2)
// A change of the rate alone moves no weight, and rounding errors of large z do not accumulate.
// The paper's w depends on z and n alone, so before the first update it is 0 whatever the initial weights are, unless
// those were set, which makes them the center of the first proximal term.
struct Ftrl {
  static constexpr int kSlots = 2;
  static constexpr bool kDecaysWeightsItself = false;

  explicit Ftrl(const v1::Optimizer& config)
      : learning_rate(config.ftrl().learning_rate()),
        beta(config.ftrl().beta()),
        l1(config.ftrl().l1()),
        l2(config.ftrl().l2()) {}

  struct Element {
    float inverse_rate;
    float beta;
    float l1;
    float l2;
    // 0 in the first update, unless it starts from set weights; otherwise 1.
    float trust;

    ABSL_ATTRIBUTE_ALWAYS_INLINE float operator()(float w, float g, float& z, float& n) const {
      const float next = n + g * g;
      const float weight = (beta + std::sqrt(next)) * inverse_rate + l2;
      const float from = trust * w;
      const float clamped = Clamp(z);
      const float moved = clamped + g - weight * from;
      const float step = (g + (clamped - Clamp(moved))) / (weight > 0 ? weight : 1.0f);
      z = moved;
      n = next;
      return std::fabs(moved) <= l1 ? 0.0f : from - step;
    }

    ABSL_ATTRIBUTE_ALWAYS_INLINE float Clamp(float x) const { return x > l1 ? l1 : (x < -l1 ? -l1 : x); }
  };

  Element For(const OptimizerStep& step) const {
    return {static_cast<float>(1.0 / std::max(step.learning_rate, kSmallestRate)), beta, l1, l2,
            step.update == 1 && !step.begins_from_weights ? 0.0f : 1.0f};
  }

  float learning_rate;
  float beta;
  float l1;
  float l2;
};

// Changes nothing at a rate of 0, by which the rule cannot divide.
class FtrlOptimizer : public ElementwiseOptimizer<Ftrl> {
 public:
  using ElementwiseOptimizer::ElementwiseOptimizer;

  void Apply(const OptimizerStep& step, const Gradient& gradient, const OptimizerState& state) const override {
    if (step.learning_rate > 0) return ElementwiseOptimizer::Apply(step, gradient, state);
    if (state.updated != state.weights) std::copy_n(state.weights, gradient.size(), state.updated);
  }
};

}  // namespace

std::unique_ptr<Optimizer> MakeFtrl(const v1::Optimizer& config) { return std::make_unique<FtrlOptimizer>(config); }

}  // namespace ballast
