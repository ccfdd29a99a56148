// SPDX-License-Identifier: Apache-2.0
#include "server/optimizers/sgd.h"

namespace ballast {
namespace {

// w -= lr * g.
class Sgd : public Optimizer {
 public:
  explicit Sgd(const v1::Optimizer::Sgd& config) : learning_rate_(config.learning_rate()) {}

  int slots() const override { return 0; }
  float LearningRate(uint64_t) const override { return learning_rate_; }

  void Apply(uint64_t, absl::Span<const float> gradient, absl::Span<float> weights, absl::Span<float>) const override {
    const size_t n = weights.size();
    const float* __restrict g = gradient.data();
    float* __restrict w = weights.data();
    const float rate = learning_rate_;
    for (size_t i = 0; i < n; ++i) w[i] -= rate * g[i];
  }

 private:
  const float learning_rate_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeSgd(const v1::Optimizer& config) { return std::make_unique<Sgd>(config.sgd()); }

}  // namespace ballast
