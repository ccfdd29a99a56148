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

  bool wants_whole_slice() const override { return false; }

  void Apply(const OptimizerStep& step, const OptimizerBlock& block) const override {
    const size_t n = block.gradient.size();
    const float* g = block.gradient.data();
    float* v = block.slots[0];
    for (size_t i = 0; i < n; ++i) {
      v[i] = momentum_ * v[i] + step.gradient_scale * g[i];
      block.updated[i] = block.weights[i] - step.learning_rate * v[i];
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
