// SPDX-License-Identifier: Apache-2.0
#include "server/optimizers/gradient_filter.h"

#include <limits>

#include "server/optimizers/square_sum.h"

namespace ballast {
namespace {

struct ClipLoop {
  GradientFilter::Element element;
  absl::Span<const float> gradient;
  float* clipped;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    const size_t n = gradient.size();
    const float* g = gradient.data();
    BALLAST_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < n; ++i) clipped[i] = element.Clipped(g[i]);
  }
};

}  // namespace

GradientFilter::GradientFilter(const v1::Optimizer& config, float weight_decay, InstructionSet set)
    : clip_value_(config.clip_value() > 0 ? config.clip_value() : std::numeric_limits<float>::infinity()),
      clip_norm_(config.clip_norm()),
      weight_decay_(weight_decay),
      set_(set) {}

GradientFilter::Element GradientFilter::For(float scale, const Gradient& gradient) const {
  Element element{scale, clip_value_, 1, weight_decay_};
  if (clip_norm_ <= 0) return element;
  SquareSum squares(set_);
  float clipped[Gradient::kBlockElements];
  gradient.ForEachBlock([&](size_t, absl::Span<const float> block) {
    Run(set_, ClipLoop{element, block, clipped});
    squares.Add(absl::MakeConstSpan(clipped, block.size()));
  });
  const double norm = squares.Norm();
  if (norm > clip_norm_) element.norm_scale = static_cast<float>(clip_norm_ / norm);
  return element;
}

}  // namespace ballast
