// SPDX-License-Identifier: Apache-2.0
#include "server/policies/weighted_sum.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// Reuses the memory of `to`, unless it is shared. The gradient may view `to`.
void Copy(const Gradient& gradient, ValueBuffer& to) {
  const bool reuses = to.size() > 0 && to.size() == gradient.size() && to.unique();
  ValueBuffer copy = reuses ? std::move(to) : ValueBuffer(gradient.size());
  gradient.CopyTo(copy.mutable_values().data());
  to = std::move(copy);
}

// Takes the message of the gradient instead, if it may.
void TakeOrCopy(const Gradient& gradient, ValueBuffer& to) {
  BufferPool::Buffer* const message = gradient.message();
  if (message == nullptr) return Copy(gradient, to);
  to = ValueBuffer(std::move(*message), gradient.in_message());
}

}  // namespace

void WeightedSum::Add(uint32_t examples, const Gradient& gradient) {
  if (examples == 0) return;
  if (empty()) {
    TakeOrCopy(gradient, sum_);
  } else {
    Copy(With(examples, gradient), sum_);
  }
  ++addends_;
  examples_ += examples;
}

Gradient WeightedSum::With(uint32_t examples, const Gradient& gradient) const {
  // The first gradient is weighted only when a second arrives: alone it needs no weight, so a plain copy is enough.
  return Gradient::Sum(sum_.values(), addends_ == 1 ? static_cast<float>(examples_) : 1.0f, gradient,
                       static_cast<float>(examples));
}

void WeightedSum::Add(Kept kept) {
  if (kept.examples > 0 && addends_ == 0) {
    std::swap(sum_, kept.values);
    addends_ = 1;
    examples_ = kept.examples;
  } else {
    Add(kept.examples, Gradient(kept.values.values()));
  }
  if (kept.values.size() == 0 || !kept.values.unique()) return;
  spare_bytes_ += kept.values.bytes();
  spare_.push_back(std::move(kept.values));
}

WeightedSum::Kept WeightedSum::Keep(uint32_t examples, const Gradient& gradient) {
  Kept kept{examples, {}};
  if (examples == 0) return kept;
  if (!spare_.empty()) {
    kept.values = std::move(spare_.back());
    spare_.pop_back();
    spare_bytes_ -= kept.values.bytes();
  }
  TakeOrCopy(gradient, kept.values);
  return kept;
}

void WeightedSum::Save(PolicyState& to) const {
  to.fields.set_addends(addends_);
  to.fields.set_sum_examples(examples_);
  if (addends_ > 0) to.sum = sum_;
}

absl::Status WeightedSum::Restore(const PolicyState& from, size_t elements) {
  const size_t want = from.fields.addends() > 0 ? elements : 0;
  if (from.sum.size() != want) {
    return absl::InvalidArgumentError(
        absl::StrCat("sum of gradients: got ", from.sum.size(), " elements, want ", want));
  }
  addends_ = from.fields.addends();
  examples_ = from.fields.sum_examples();
  if (addends_ > 0) sum_ = from.sum;
  return absl::OkStatus();
}

void WeightedSum::Clear() {
  addends_ = 0;
  examples_ = 0;
}

}  // namespace ballast
