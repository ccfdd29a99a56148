// SPDX-License-Identifier: Apache-2.0
#include "server/optimizers/lamb.h"

#include "server/optimizers/adam_moments.h"
#include "server/optimizers/gradient_filter.h"
#include "server/optimizers/schedule.h"
#include "server/optimizers/square_sum.h"

namespace ballast {
namespace {

// What both passes make of one element.
struct Element {
  AdamMoments::Element moments;
  float weight_decay;

  ABSL_ATTRIBUTE_ALWAYS_INLINE float Direction(float w, float m, float v) const {
    return moments.Direction(m, v) + weight_decay * w;
  }
};

// First pass: the moments, and the direction for its norm.
struct MomentsLoop {
  Element element;
  GradientFilter::Element filter;
  absl::Span<const float> gradient;
  const float* weights;
  float* m;
  float* v;
  float* direction;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    const size_t n = gradient.size();
    const float* g = gradient.data();
    BALLAST_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < n; ++i) {
      const float w = weights[i];
      float new_m = m[i];
      float new_v = v[i];
      element.moments.Take(filter(g[i], w), new_m, new_v);
      m[i] = new_m;
      v[i] = new_v;
      direction[i] = element.Direction(w, new_m, new_v);
    }
  }
};

// Second pass: the same direction again, and the weights.
struct WeightsLoop {
  Element element;
  float rate;
  size_t n;
  const float* weights;
  float* updated;
  const float* m;
  const float* v;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    BALLAST_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < n; ++i) {
      updated[i] = weights[i] - rate * element.Direction(weights[i], m[i], v[i]);
    }
  }
};

// w -= lr * (|w| / |d|) * d, d = direction by AdamMoments + weight_decay * w, the ratio 1 where either norm is 0; norms
// over the slice (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2020,
// algorithm 2, with phi the identity).
class Lamb : public Optimizer {
 public:
  Lamb(const v1::Optimizer& config, InstructionSet set)
      : schedule_(config.schedule(), config.lamb().learning_rate()),
        moments_(config.lamb(), 1e-6),
        weight_decay_(config.weight_decay()),
        filter_(config, 0.0f, set),
        set_(set) {}

  int slots() const override { return 2; }
  float LearningRate(uint64_t update) const override { return schedule_.LearningRate(update - 1); }

  void Apply(const OptimizerStep& step, const Gradient& gradient, const OptimizerState& state) const override {
    const Element element{moments_.For(step.update, 1), weight_decay_};
    const float ratio = TakeMoments(element, filter_.For(step.gradient_scale, gradient), gradient, state);
    // Backwards: what the first pass touched last is still in the cache.
    constexpr size_t kBlock = Gradient::kBlockElements;
    for (size_t end = gradient.size(); end > 0;) {
      const size_t n = (end - 1) % kBlock + 1;
      end -= n;
      Run(set_, WeightsLoop{element, step.learning_rate * ratio, n, state.weights + end, state.updated + end,
                            state.slots[0] + end, state.slots[1] + end});
    }
  }

 private:
  // Returns |w| / |d|.
  float TakeMoments(const Element& element, const GradientFilter::Element& filter, const Gradient& gradient,
                    const OptimizerState& state) const {
    SquareSum weights(set_);
    SquareSum directions(set_);
    float direction[Gradient::kBlockElements];
    gradient.ForEachBlock([&](size_t first, absl::Span<const float> block) {
      const float* w = state.weights + first;
      Run(set_, MomentsLoop{element, filter, block, w, state.slots[0] + first, state.slots[1] + first, direction});
      weights.Add(absl::MakeConstSpan(w, block.size()));
      directions.Add(absl::MakeConstSpan(direction, block.size()));
    });
    const double weight_norm = weights.Norm();
    const double direction_norm = directions.Norm();
    return weight_norm > 0 && direction_norm > 0 ? static_cast<float>(weight_norm / direction_norm) : 1.0f;
  }

  const Schedule schedule_;
  const AdamMoments moments_;
  const float weight_decay_;
  const GradientFilter filter_;
  const InstructionSet set_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeLamb(const v1::Optimizer& config, InstructionSet set) {
  return std::make_unique<Lamb>(config, set);
}

}  // namespace ballast
