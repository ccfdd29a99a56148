// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/adam_moments.h"
#include "server/weights/optimizers/optimizer_kind.h"
#include "server/weights/optimizers/row_loop.h"

namespace ballast {
namespace {

// w -= lr * direction of AdamMoments, with one v for a row, which takes |g|^2 / dim (FBGEMM's PARTIAL_ROWWISE_ADAM). A
// row of one element changes as under Adam. Slots: m for each element, then v.
struct RowWiseAdam {
  static constexpr bool kNeedsRate = false;
  static constexpr bool kDecaysWeightsItself = false;

  explicit RowWiseAdam(const v1::Optimizer& config)
      : learning_rate(config.row_wise_adam().learning_rate()), moments(config.row_wise_adam()) {
    moments.Tabulate();
  }

  static int SlotFloats(int dim) { return dim + 1; }

  struct Element {
    AdamMoments::Element moments;

    ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()(const RowArrays& row, float mean_square) const {
      const RowArrays r = row;
      float v = r.slots[r.dim];
      moments.TakeSecond(mean_square, v);
      BALLAST_INDEPENDENT_ITERATIONS
      for (size_t i = 0; i < r.dim; ++i) {
        const float w = r.weights[i];
        float m = r.slots[i];
        moments.TakeFirst(r.filter(r.gradient[i], w), m);
        r.weights[i] = w - moments.Direction(m, v);
        r.slots[i] = m;
      }
      r.slots[r.dim] = v;
    }
  };

  Element For(const OptimizerStep& step) const { return {moments.For(step.update, step.learning_rate)}; }

  float learning_rate;
  AdamMoments moments;
};

}  // namespace

OptimizerKind RowWiseAdamKind() { return {nullptr, MakeRowLoop<RowWiseAdam>}; }

}  // namespace ballast
