// SPDX-License-Identifier: Apache-2.0
#include "server/memory/value_buffer.h"
#include "server/weights/optimizers/adam_moments.h"
#include "server/weights/optimizers/gradient_filter.h"
#include "server/weights/optimizers/optimizer.h"
#include "server/weights/optimizers/optimizer_kind.h"
#include "server/weights/optimizers/row_loop.h"
#include "server/weights/optimizers/schedule.h"

namespace ballast {
namespace {

// First pass: the moments and the direction.
struct MomentsLoop {
  AdamMoments::Element moments;
  GradientFilter::Element filter;
  float weight_decay;
  size_t first;
  absl::Span<const float> gradient;
  const float* weights;
  float* m;
  float* v;
  float* direction;
  SquareSum* weight_squares;
  SquareSum* direction_squares;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    const float* g = gradient.data();
    SquareSum weight_sum = *weight_squares;
    SquareSum direction_sum = *direction_squares;
    const auto take = [&](size_t i, size_t lane) ABSL_ATTRIBUTE_ALWAYS_INLINE {
      const float w = weights[i];
      float new_m = m[i];
      float new_v = v[i];
      moments.Take(filter(g[i], w), new_m, new_v);
      m[i] = new_m;
      v[i] = new_v;
      const float d = moments.Direction(new_m, new_v) + weight_decay * w;
      direction[i] = d;
      weight_sum.Take(lane, w);
      direction_sum.Take(lane, d);
    };
    SquareSum::ForEachLane(first, gradient.size(), take);
    *weight_squares = weight_sum;
    *direction_squares = direction_sum;
  }
};

// Second pass: the weights. `direction` and `updated` may be the same.
struct WeightsLoop {
  float rate;
  size_t n;
  const float* weights;
  const float* direction;
  float* updated;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    BALLAST_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < n; ++i) updated[i] = weights[i] - rate * direction[i];
  }
};

// |w| / |d|, or 1 if either is 0.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline float Ratio(const SquareSum& weights, const SquareSum& directions) {
  const double weight_norm = weights.Norm();
  const double direction_norm = directions.Norm();
  return weight_norm > 0 && direction_norm > 0 ? static_cast<float>(weight_norm / direction_norm) : 1.0f;
}

// w -= lr * (|w| / |d|) * d, with d = direction of AdamMoments + weight_decay * w, a ratio of 1 if either norm is 0,
// and norms over the slice (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
// 2020, algorithm 2, with phi the identity).
// The ratio is known only after the last element, so there are two passes: the second moves 12 bytes per element in
// addition to Adam's 28, from the third-level cache if it holds the slice.
class Lamb : public Optimizer {
 public:
  explicit Lamb(const v1::Optimizer& config)
      : schedule_(config.schedule(), config.lamb().learning_rate()),
        moments_(config.lamb()),
        weight_decay_(config.weight_decay()),
        filter_(config, 0.0f) {}

  int slots() const override { return 2; }
  float LearningRate(uint64_t update, std::optional<double> position) const override {
    return schedule_.LearningRate(update - 1, position);
  }

  void Apply(const OptimizerStep& step, const Gradient& gradient, const OptimizerState& state) const override {
    float* const direction = state.updated != state.weights ? state.updated : Scratch(gradient.size());
    const float ratio = TakeMoments(step, gradient, state, direction);
    // Goes backwards, because the last elements of the first pass are still in the cache.
    constexpr size_t kBlock = Gradient::kBlockElements;
    for (size_t end = gradient.size(); end > 0;) {
      const size_t n = (end - 1) % kBlock + 1;
      end -= n;
      RunLoop(WeightsLoop{step.learning_rate * ratio, n, state.weights + end, direction + end, state.updated + end});
    }
  }

 private:
  // At least that many elements; valid for this thread until its next call.
  static float* Scratch(size_t elements) {
    thread_local ValueBuffer scratch;
    if (scratch.size() < elements) scratch = ValueBuffer(elements);
    return scratch.mutable_values().data();
  }

  // Writes the direction and returns |w| / |d|.
  float TakeMoments(const OptimizerStep& step, const Gradient& gradient, const OptimizerState& state,
                    float* direction) const {
    const AdamMoments::Element moments = moments_.For(step.update, 1);
    const GradientFilter::Element filter = filter_.For(step.gradient_scale, gradient);
    SquareSum weights;
    SquareSum directions;
    gradient.ForEachBlock([&](size_t first, absl::Span<const float> block) {
      RunLoop(MomentsLoop{moments, filter, weight_decay_, first, block, state.weights + first, state.slots[0] + first,
                          state.slots[1] + first, direction + first, &weights, &directions});
    });
    return Ratio(weights, directions);
  }

  const Schedule schedule_;
  const AdamMoments moments_;
  const float weight_decay_;
  const GradientFilter filter_;
};

// The same for a row. The second pass computes the directions again, because that costs less than keeping them.
struct LambRow {
  static constexpr bool kNeedsRate = false;
  static constexpr bool kDecaysWeightsItself = true;

  explicit LambRow(const v1::Optimizer& config)
      : learning_rate(config.lamb().learning_rate()), moments(config.lamb()), weight_decay(config.weight_decay()) {
    moments.Tabulate();
  }

  static int SlotFloats(int dim) { return 2 * dim; }

  struct Element {
    float rate;
    AdamMoments::Element moments;
    float weight_decay;

    ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()(const RowArrays& row) const {
      const RowArrays r = row;
      float* const m = r.slots;
      float* const v = r.slots + r.dim;
      SquareSum weights;
      SquareSum directions;
      const auto direction = [&](size_t i) ABSL_ATTRIBUTE_ALWAYS_INLINE {
        return moments.Direction(m[i], v[i]) + weight_decay * r.weights[i];
      };
      const auto take = [&](size_t i, size_t lane) ABSL_ATTRIBUTE_ALWAYS_INLINE {
        moments.Take(r.filter(r.gradient[i], r.weights[i]), m[i], v[i]);
        weights.Take(lane, r.weights[i]);
        directions.Take(lane, direction(i));
      };
      SquareSum::ForEachLane(0, r.dim, take);
      const float step = rate * Ratio(weights, directions);
      BALLAST_INDEPENDENT_ITERATIONS
      for (size_t i = 0; i < r.dim; ++i) r.weights[i] = r.weights[i] - step * direction(i);
    }
  };

  Element For(const OptimizerStep& step) const {
    return {step.learning_rate, moments.For(step.update, 1), weight_decay};
  }

  float learning_rate;
  AdamMoments moments;
  float weight_decay;
};

}  // namespace

OptimizerKind LambKind() {
  return {[](const v1::Optimizer& config) -> std::unique_ptr<Optimizer> { return std::make_unique<Lamb>(config); },
          MakeRowLoop<LambRow>};
}

}  // namespace ballast
