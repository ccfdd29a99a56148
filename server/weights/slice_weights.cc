// SPDX-License-Identifier: Apache-2.0
#include "server/weights/slice_weights.h"

#include <algorithm>
#include <utility>

#include "server/weights/initializer.h"

namespace ballast {
namespace {

void Copy(const ValueBuffer& from, ValueBuffer& to) {
  std::copy(from.values().begin(), from.values().end(), to.mutable_values().begin());
}

}  // namespace

SliceWeights::SliceWeights(const v1::SliceRange& range, const Optimizer* optimizer)
    : optimizer_(optimizer), values_(ValueBuffer::Readable(range.elements())) {
  for (int slot = 0; slot < optimizer->slots(); ++slot) slots_.emplace_back(range.elements());
}

SliceWeights::SliceWeights(const v1::TensorSpec& spec, const v1::SliceRange& range, const Optimizer* optimizer)
    : SliceWeights(range, optimizer) {
  for (ValueBuffer& slot : slots_) std::fill_n(slot.mutable_values().data(), slot.size(), 0.0f);
  Initialize(spec, range.offset(), values_.mutable_values());
}

void SliceWeights::Apply(const Gradient& gradient, const ApplyOptions& options) {
  ++version_;
  ++applied_;
  const OptimizerStep step{applied_, options.rate_scale * optimizer_->LearningRate(applied_, position_),
                           options.gradient_scale, set_checksum_.has_value()};
  // Pulls may still send the old values, so they are not overwritten if shared.
  ValueBuffer updated = values_.unique() ? values_ : ValueBuffer::Readable(values_.size());
  OptimizerState state{values_.values().data(), updated.mutable_values().data(), {}};
  for (int slot = 0; slot < optimizer_->slots(); ++slot) {
    // Optimizers change slots in place.
    if (!slots_[slot].unique()) {
      ValueBuffer copy(slots_[slot].size());
      Copy(slots_[slot], copy);
      slots_[slot] = std::move(copy);
    }
    state.slots[slot] = slots_[slot].mutable_values().data();
  }
  optimizer_->Apply(step, gradient, state);
  values_ = std::move(updated);
}

SliceWeights::State SliceWeights::Share() const {
  State state{version_, applied_, position_, pushed_, set_checksum_, {values_}};
  state.arrays.insert(state.arrays.end(), slots_.begin(), slots_.end());
  return state;
}

void SliceWeights::Restore(State state) {
  version_ = state.version;
  applied_ = state.applied;
  position_ = state.position;
  pushed_ = state.pushed;
  set_checksum_ = state.set_checksum;
  values_ = std::move(state.arrays[0]);
  for (size_t slot = 0; slot < slots_.size(); ++slot) slots_[slot] = std::move(state.arrays[slot + 1]);
}

}  // namespace ballast
