// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>

#include "ballast/v1/tensor.pb.h"
#include "common/simd/instruction_set.h"
#include "server/weights/optimizers/gradient_filter.h"
#include "server/weights/optimizers/optimizer.h"
#include "server/weights/optimizers/optimizer_kind.h"
#include "server/weights/optimizers/row_loop.h"
#include "server/weights/optimizers/schedule.h"

namespace ballast {

// The loop over a block of a slice, or over a row. Rule: see ElementwiseOptimizer. `weights` and `updated` may be the
// same.
template <typename Rule>
struct ElementwiseLoop {
  decltype(std::declval<const Rule>().For(OptimizerStep())) element;
  GradientFilter::Element filter;
  absl::Span<const float> gradient;
  const float* weights;
  float* updated;
  float* slot0;
  float* slot1;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    const size_t n = gradient.size();
    const float* g = gradient.data();
    BALLAST_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < n; ++i) {
      const float w = weights[i];
      if constexpr (Rule::kSlots == 0) {
        updated[i] = element(w, filter(g[i], w));
      } else if constexpr (Rule::kSlots == 1) {
        float s = slot0[i];
        updated[i] = element(w, filter(g[i], w), s);
        slot0[i] = s;
      } else {
        float s = slot0[i];
        float t = slot1[i];
        updated[i] = element(w, filter(g[i], w), s, t);
        slot0[i] = s;
        slot1[i] = t;
      }
    }
  }
};

// Applies a rule that updates each weight from its own gradient and slots only. A Rule has
//   kSlots, kDecaysWeightsItself    constants;
//   kNeedsRate                      constant: true if the rule divides by the rate; updates at a rate of 0 are skipped;
//   Rule(const v1::Optimizer&)      its hyperparameters, learning_rate among them;
//   For(const OptimizerStep&)       a value for one update, whose operator()(w, g, slots&...) changes the slots and
//                                   returns the new weight. It is ABSL_ATTRIBUTE_ALWAYS_INLINE, has no branches, and
//                                   uses only floats, so the compiler vectorizes it;
//   PrepareForRows()                optional: spends time and memory so that For takes a few nanoseconds.
// Thread safety: immutable.
template <typename Rule>
class ElementwiseOptimizer : public Optimizer {
 public:
  explicit ElementwiseOptimizer(const v1::Optimizer& config)
      : rule_(config),
        schedule_(config.schedule(), rule_.learning_rate),
        filter_(config, Rule::kDecaysWeightsItself ? 0.0f : config.weight_decay()) {}

  int slots() const override { return Rule::kSlots; }
  float LearningRate(uint64_t update, std::optional<double> position) const override {
    return schedule_.LearningRate(update - 1, position);
  }

  void Apply(const OptimizerStep& step, const Gradient& gradient, const OptimizerState& state) const override {
    if (Rule::kNeedsRate && !(step.learning_rate > 0)) {
      if (state.updated != state.weights) std::copy_n(state.weights, gradient.size(), state.updated);
      return;
    }
    ElementwiseLoop<Rule> loop{
        rule_.For(step), filter_.For(step.gradient_scale, gradient), {}, nullptr, nullptr, nullptr, nullptr};
    gradient.ForEachBlock([&](size_t first, absl::Span<const float> block) {
      loop.gradient = block;
      loop.weights = state.weights + first;
      loop.updated = state.updated + first;
      if constexpr (Rule::kSlots > 0) loop.slot0 = state.slots[0] + first;
      if constexpr (Rule::kSlots > 1) loop.slot1 = state.slots[1] + first;
      RunLoop(loop);
    });
  }

 private:
  const Rule rule_;
  const Schedule schedule_;
  const GradientFilter filter_;
};

// The same rule for a row, as RowLoop takes it.
template <typename Rule>
struct ElementwiseRow : Rule {
  explicit ElementwiseRow(const v1::Optimizer& config) : Rule(config) {
    if constexpr (requires(Rule rule) { rule.PrepareForRows(); }) Rule::PrepareForRows();
  }

  static int SlotFloats(int dim) { return Rule::kSlots * dim; }

  struct Element {
    decltype(std::declval<const Rule>().For(OptimizerStep())) element;

    ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()(const RowArrays& row) const {
      ElementwiseLoop<Rule>{
          element,   row.filter,         absl::MakeConstSpan(row.gradient, row.dim), row.weights, row.weights,
          row.slots, row.slots + row.dim}();
    }
  };

  Element For(const OptimizerStep& step) const { return {Rule::For(step)}; }
};

template <typename Rule>
OptimizerKind ElementwiseKind() {
  return {[](const v1::Optimizer& config) -> std::unique_ptr<Optimizer> {
            return std::make_unique<ElementwiseOptimizer<Rule>>(config);
          },
          MakeRowLoop<ElementwiseRow<Rule>>};
}

}  // namespace ballast
