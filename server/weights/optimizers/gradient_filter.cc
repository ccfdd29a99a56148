// SPDX-License-Identifier: Apache-2.0
#include "server/weights/optimizers/gradient_filter.h"

#include <limits>

namespace ballast {
namespace {

// Sums the squares of the gradient after clipping by value.
struct NormLoop {
  GradientFilter::Element element;
  size_t first;
  absl::Span<const float> gradient;
  SquareSum* squares;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    const float* g = gradient.data();
    SquareSum sum = *squares;
    const auto take = [&](size_t i, size_t lane)
                          ABSL_ATTRIBUTE_ALWAYS_INLINE { sum.Take(lane, element.Clipped(g[i])); };
    SquareSum::ForEachLane(first, gradient.size(), take);
    *squares = sum;
  }
};

}  // namespace

GradientFilter::GradientFilter(const v1::Optimizer& config, float weight_decay)
    : clip_value_(config.clip_value() > 0 ? config.clip_value() : std::numeric_limits<float>::infinity()),
      clip_norm_(config.clip_norm()),
      weight_decay_(weight_decay) {}

GradientFilter::Element GradientFilter::For(float scale, const Gradient& gradient) const {
  Element element = Unclipped(scale);
  if (clip_norm_ <= 0) return element;
  SquareSum squares;
  gradient.ForEachBlock([&](size_t first, absl::Span<const float> block) {
    RunLoop(NormLoop{element, first, block, &squares});
  });
  element.norm_scale = NormScale(squares);
  return element;
}

}  // namespace ballast
