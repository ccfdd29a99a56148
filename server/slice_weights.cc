// SPDX-License-Identifier: Apache-2.0
#include "server/slice_weights.h"

#include <utility>

#include "server/initializer.h"

namespace ballast {

SliceWeights::SliceWeights(const v1::TensorSpec& spec, const v1::SliceRange& range, const Optimizer* optimizer)
    : optimizer_(optimizer), values_(range.elements()), slots_(range.elements() * optimizer->slots(), 0.0f) {
  Initialize(spec, range.offset(), values_.mutable_values());
}

void SliceWeights::Apply(const Gradient& gradient, const Terms& terms) {
  ++version_;
  ++applied_;
  const OptimizerStep step{applied_, terms.rate_scale * optimizer_->LearningRate(applied_), terms.gradient_scale};
  // Pulls may still be sending the old values.
  ValueBuffer updated = values_.unique() ? values_ : ValueBuffer(values_.size());
  const auto apply = [&](size_t first, absl::Span<const float> block) {
    OptimizerBlock part{block, values_.values().data() + first, updated.mutable_values().data() + first, {}};
    for (int slot = 0; slot < optimizer_->slots(); ++slot) {
      part.slots[slot] = slots_.data() + slot * values_.size() + first;
    }
    optimizer_->Apply(step, part);
  };
  if (optimizer_->wants_whole_slice()) {
    std::vector<float> whole;
    whole.reserve(gradient.size());
    gradient.ForEachBlock(
        [&](size_t, absl::Span<const float> block) { whole.insert(whole.end(), block.begin(), block.end()); });
    apply(0, whole);
  } else {
    gradient.ForEachBlock(apply);
  }
  values_ = std::move(updated);
}

}  // namespace ballast
