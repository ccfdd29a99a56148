// SPDX-License-Identifier: Apache-2.0
#include "server/policies/weighted_sum.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

void Copy(const Gradient& gradient, std::vector<float>& to) {
  to.resize(gradient.size());
  gradient.ForEachBlock(
      [&](size_t first, absl::Span<const float> block) { std::copy(block.begin(), block.end(), to.begin() + first); });
}

}  // namespace

void WeightedSum::Add(uint32_t examples, const Gradient& gradient) {
  if (examples == 0) return;
  const float weight = examples;
  // The first one is weighted when a second comes: alone it needs no weight, and its copy is a plain one.
  const float first_weight = examples_;
  ++addends_;
  examples_ += examples;
  if (addends_ == 1) return Copy(gradient, sum_);
  gradient.ForEachBlock([&](size_t first, absl::Span<const float> block) {
    float* sum = sum_.data() + first;
    if (addends_ == 2) {
      for (size_t i = 0; i < block.size(); ++i) sum[i] = first_weight * sum[i] + weight * block[i];
    } else {
      for (size_t i = 0; i < block.size(); ++i) sum[i] += weight * block[i];
    }
  });
}

void WeightedSum::Add(Kept kept) {
  if (kept.examples > 0 && addends_ == 0) {
    std::swap(sum_, kept.values);
    addends_ = 1;
    examples_ = kept.examples;
  } else {
    Add(kept.examples, Gradient(absl::MakeConstSpan(kept.values)));
  }
  if (kept.values.capacity() > 0) spare_.push_back(std::move(kept.values));
}

WeightedSum::Kept WeightedSum::Keep(uint32_t examples, const Gradient& gradient) {
  Kept kept{examples, {}};
  if (examples == 0) return kept;
  if (!spare_.empty()) {
    kept.values = std::move(spare_.back());
    spare_.pop_back();
  }
  Copy(gradient, kept.values);
  return kept;
}

void WeightedSum::Save(internal::v1::PolicyState* to) const {
  to->set_addends(addends_);
  to->set_sum_examples(examples_);
  if (addends_ > 0) to->set_sum(sum_.data(), sum_.size() * sizeof(float));
}

absl::Status WeightedSum::Restore(const internal::v1::PolicyState& from, size_t elements) {
  const size_t want = from.addends() > 0 ? elements * sizeof(float) : 0;
  if (from.sum().size() != want) {
    return absl::InvalidArgumentError(absl::StrCat("sum of gradients: got ", from.sum().size(), " bytes, want ", want));
  }
  addends_ = from.addends();
  examples_ = from.sum_examples();
  if (addends_ > 0) sum_.resize(elements);
  std::copy(from.sum().begin(), from.sum().end(), reinterpret_cast<char*>(sum_.data()));
  return absl::OkStatus();
}

void WeightedSum::Clear() {
  addends_ = 0;
  examples_ = 0;
}

}  // namespace ballast
