// SPDX-License-Identifier: Apache-2.0
#include "server/optimizers/adam.h"

#include <cmath>

namespace ballast {
namespace {

// Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1:
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   w -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
class Adam : public Optimizer {
 public:
  explicit Adam(const v1::Optimizer::Adam& config)
      : learning_rate_(config.learning_rate()),
        beta1_(config.has_beta1() ? config.beta1() : 0.9f),
        beta2_(config.has_beta2() ? config.beta2() : 0.999f),
        epsilon_(config.has_epsilon() ? config.epsilon() : 1e-8f) {}

  int slots() const override { return 2; }
  float LearningRate(uint64_t) const override { return learning_rate_; }

  bool wants_whole_slice() const override { return false; }

  void Apply(const OptimizerStep& step, const OptimizerBlock& block) const override {
    const size_t n = block.gradient.size();
    const double t = static_cast<double>(step.update);
    const float rate = step.learning_rate / (1.0 - std::pow(static_cast<double>(beta1_), t));
    const float root_correction = 1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(beta2_), t));
    const float b1 = beta1_, b2 = beta2_, epsilon = epsilon_;
    float* m = block.slots[0];
    float* v = block.slots[1];
    for (size_t i = 0; i < n; ++i) {
      const float g = step.gradient_scale * block.gradient[i];
      m[i] = b1 * m[i] + (1 - b1) * g;
      v[i] = b2 * v[i] + (1 - b2) * g * g;
      block.updated[i] = block.weights[i] - rate * m[i] / (std::sqrt(v[i]) * root_correction + epsilon);
    }
  }

 private:
  const float learning_rate_;
  const float beta1_;
  const float beta2_;
  const float epsilon_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeAdam(const v1::Optimizer& config) { return std::make_unique<Adam>(config.adam()); }

}  // namespace ballast
