// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/memory/value_buffer.h"
#include "server/policies/policy_state.h"
#include "server/weights/optimizers/gradient.h"

namespace ballast {

// Owns a sum of gradients weighted by their numbers of examples, and its memory, which it keeps, so a step like the
// one before allocates nothing. The bits depend on the order of the additions; a single gradient is kept bit for bit,
// and one without examples changes nothing. Thread safety: none; guarded by its policy's slice.
class WeightedSum {
 public:
  // A gradient that has not been added yet: a copy, or its message. Never changed while shared.
  struct Kept {
    uint32_t examples = 0;
    ValueBuffer values;
  };

  // Adds nothing if there are no examples. May take the gradient's message, as Keep may.
  void Add(uint32_t examples, const Gradient& gradient);
  void Add(Kept kept);

  Kept Keep(uint32_t examples, const Gradient& gradient);

  // The mean is gradient() * scale().
  Gradient gradient() const { return Gradient(sum_.values()); }
  float scale() const { return addends_ == 1 ? 1.0f : MeanScale(examples_); }

  // The same after Add(examples, gradient), without doing that: the sum is read only while the result is used, so that
  // the last addend costs no pass of its own. There are addends already, and `examples` is not 0.
  Gradient With(uint32_t examples, const Gradient& gradient) const;
  float ScaleWith(uint32_t examples) const { return MeanScale(examples_ + examples); }

  bool empty() const { return addends_ == 0; }
  void Clear();

  // Memory of the sum and of buffers for reuse; without that of Kept gradients, which their owner has.
  uint64_t bytes() const { return sum_.bytes() + spare_bytes_; }

  // Saves the current sum, shared, and the fields addends and sum_examples.
  void Save(PolicyState& to) const;
  // Restores a saved sum for a slice of that many elements. INVALID_ARGUMENT for a sum of another size.
  absl::Status Restore(const PolicyState& from, size_t elements);

 private:
  static float MeanScale(uint64_t examples) { return static_cast<float>(1.0 / static_cast<double>(examples)); }

  // The sum, if there are addends; otherwise memory for reuse.
  ValueBuffer sum_;
  uint32_t addends_ = 0;
  uint64_t examples_ = 0;
  // Unshared buffers of Kept gradients that were added, for reuse.
  std::vector<ValueBuffer> spare_;
  uint64_t spare_bytes_ = 0;
};

}  // namespace ballast
