// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/memory/value_buffer.h"
#include "server/policies/policy_state.h"
#include "server/weights/optimizers/gradient.h"

namespace ballast {

// A sum of gradients weighted by their numbers of examples, and the memory that it takes: what it needed once it keeps,
// so that a step like the one before allocates nothing. The bits depend on the order of the additions; those of a
// gradient without examples, or alone, are as if it had been used directly.
// Thread safety: none; the slice of its policy guards it.
class WeightedSum {
 public:
  // A copy of a gradient that is not added yet. Never changed while others share it.
  struct Kept {
    uint32_t examples = 0;
    ValueBuffer values;
  };

  // Without examples nothing is added.
  void Add(uint32_t examples, const Gradient& gradient);
  void Add(Kept kept);

  Kept Keep(uint32_t examples, const Gradient& gradient);

  // Times scale() it is the mean.
  Gradient gradient() const { return Gradient(sum_.values()); }
  float scale() const { return addends_ == 1 ? 1.0f : static_cast<float>(1.0 / static_cast<double>(examples_)); }

  void Clear();

  // What is in the sum so far, shared: a state's sum, and its fields addends and sum_examples.
  void Save(PolicyState& to) const;
  // As saved, for a slice of that many elements; INVALID_ARGUMENT for what no Save wrote.
  absl::Status Restore(const PolicyState& from, size_t elements);

 private:
  // As long as there are addends; else memory to be used again.
  ValueBuffer sum_;
  uint32_t addends_ = 0;
  uint64_t examples_ = 0;
  // Of Kept ones that have been added; nobody else has them.
  std::vector<ValueBuffer> spare_;
};

}  // namespace ballast
