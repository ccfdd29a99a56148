// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "ballast/internal/v1/storage.pb.h"
#include "server/gradient.h"

namespace ballast {

// A sum of gradients weighted by their numbers of examples, and the memory that it takes: what it needed once it keeps,
// so that a step like the one before allocates nothing. The bits depend on the order of the additions; those of a
// gradient without examples, or alone, are as if it had been used directly.
// Thread safety: none; the slice of its policy guards it.
class WeightedSum {
 public:
  // A copy of a gradient that is not added yet.
  struct Kept {
    uint32_t examples = 0;
    std::vector<float> values;
  };

  // Without examples nothing is added.
  void Add(uint32_t examples, const Gradient& gradient);
  void Add(Kept kept);

  Kept Keep(uint32_t examples, const Gradient& gradient);

  // Times scale() it is the mean.
  Gradient gradient() const { return Gradient(absl::MakeConstSpan(sum_)); }
  float scale() const { return addends_ == 1 ? 1.0f : static_cast<float>(1.0 / static_cast<double>(examples_)); }

  void Clear();

  // What is in the sum so far, in a state's fields sum, addends and sum_examples.
  void Save(internal::v1::PolicyState* to) const;
  // As saved, for a slice of so many elements; INVALID_ARGUMENT for what no Save wrote.
  absl::Status Restore(const internal::v1::PolicyState& from, size_t elements);

 private:
  std::vector<float> sum_;
  uint32_t addends_ = 0;
  uint64_t examples_ = 0;
  // Of Kept ones that have been added.
  std::vector<std::vector<float>> spare_;
};

}  // namespace ballast
