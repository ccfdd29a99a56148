// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "server/weights/optimizers/optimizer_kind.h"
#include "server/weights/optimizers/row_loop.h"

namespace ballast {
namespace {

// s += |g|^2 / dim; w -= lr * g / (sqrt(s) + epsilon), with one s for a row (Gupta et al., "Training Recommender
// Systems at Scale: Communication-Efficient Model and Data Parallelism", 2021). A row of one element changes as under
// Adagrad.
struct RowWiseAdagrad {
  static constexpr bool kNeedsRate = false;
  static constexpr bool kDecaysWeightsItself = false;

  explicit RowWiseAdagrad(const v1::Optimizer& config)
      : learning_rate(config.row_wise_adagrad().learning_rate()), epsilon(config.row_wise_adagrad().epsilon()) {}

  static int SlotFloats(int) { return 1; }

  struct Element {
    float rate;
    float epsilon;

    ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()(const RowArrays& row, float mean_square) const {
      const float s = *row.slots + mean_square;
      const float root = std::sqrt(s) + epsilon;
      const RowArrays r = row;
      BALLAST_INDEPENDENT_ITERATIONS
      for (size_t i = 0; i < r.dim; ++i) {
        const float w = r.weights[i];
        r.weights[i] = w - rate * r.filter(r.gradient[i], w) / root;
      }
      *r.slots = s;
    }
  };

  Element For(const OptimizerStep& step) const { return {step.learning_rate, epsilon}; }

  float learning_rate;
  float epsilon;
};

}  // namespace

OptimizerKind RowWiseAdagradKind() { return {nullptr, MakeRowLoop<RowWiseAdagrad>}; }

}  // namespace ballast
