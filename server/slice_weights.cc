// SPDX-License-Identifier: Apache-2.0
#include "server/slice_weights.h"

#include "server/initializer.h"

namespace ballast {

SliceWeights::SliceWeights(const v1::TensorSpec& spec, const v1::SliceRange& range, const Optimizer* optimizer)
    : optimizer_(optimizer), values_(range.elements()), slots_(range.elements() * optimizer->slots(), 0.0f) {
  Initialize(spec, range.offset(), absl::MakeSpan(values_));
}

void SliceWeights::Apply(absl::Span<const float> gradient) {
  ++version_;
  ++applied_;
  optimizer_->Apply(applied_, gradient, absl::MakeSpan(values_), absl::MakeSpan(slots_));
}

}  // namespace ballast
