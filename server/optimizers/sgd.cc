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

  bool wants_whole_slice() const override { return false; }

  void Apply(const OptimizerStep& step, const OptimizerBlock& block) const override {
    const size_t n = block.gradient.size();
    const float* g = block.gradient.data();
    for (size_t i = 0; i < n; ++i) {
      block.updated[i] = block.weights[i] - step.learning_rate * (step.gradient_scale * g[i]);
    }
  }

 private:
  const float learning_rate_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeSgd(const v1::Optimizer& config) { return std::make_unique<Sgd>(config.sgd()); }

}  // namespace ballast
