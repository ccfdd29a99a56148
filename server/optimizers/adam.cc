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

  void Apply(uint64_t update, absl::Span<const float> gradient, absl::Span<float> weights,
             absl::Span<float> slots) const override {
    const size_t n = weights.size();
    const float* __restrict g = gradient.data();
    float* __restrict w = weights.data();
    float* __restrict m = slots.data();
    float* __restrict v = slots.data() + n;
    const double t = static_cast<double>(update);
    const float rate = learning_rate_ / (1.0 - std::pow(static_cast<double>(beta1_), t));
    const float root_correction = 1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(beta2_), t));
    const float b1 = beta1_, b2 = beta2_, epsilon = epsilon_;
    for (size_t i = 0; i < n; ++i) {
      m[i] = b1 * m[i] + (1 - b1) * g[i];
      v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
      w[i] -= rate * m[i] / (std::sqrt(v[i]) * root_correction + epsilon);
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
