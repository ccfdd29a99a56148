// SPDX-License-Identifier: Apache-2.0
#include "server/optimizers/momentum.h"

namespace ballast {
namespace {

// v = momentum * v + g; w -= lr * v: PyTorch's form (torch.optim.SGD with dampening 0), not Sutskever's, which keeps
// lr inside v.
class Momentum : public Optimizer {
 public:
  explicit Momentum(const v1::Optimizer::Momentum& config)
      : learning_rate_(config.learning_rate()), momentum_(config.momentum()) {}

  int slots() const override { return 1; }
  float LearningRate(uint64_t) const override { return learning_rate_; }

  void Apply(uint64_t, absl::Span<const float> gradient, absl::Span<float> weights,
             absl::Span<float> slots) const override {
    const size_t n = weights.size();
    const float* __restrict g = gradient.data();
    float* __restrict w = weights.data();
    float* __restrict v = slots.data();
    const float rate = learning_rate_;
    const float keep = momentum_;
    for (size_t i = 0; i < n; ++i) {
      v[i] = keep * v[i] + g[i];
      w[i] -= rate * v[i];
    }
  }

 private:
  const float learning_rate_;
  const float momentum_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeMomentum(const v1::Optimizer& config) {
  return std::make_unique<Momentum>(config.momentum());
}

}  // namespace ballast
