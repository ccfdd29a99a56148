// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"
#include "server/optimizers/optimizer.h"

namespace ballast {

// One slice's weights, the optimizer's slots beside them, and how many updates they have seen.
// Knows nothing of workers or policies. Thread safety: none; its slice guards it.
class SliceWeights {
 public:
  // `optimizer` must outlive this.
  SliceWeights(const v1::TensorSpec& spec, const v1::SliceRange& range, const Optimizer* optimizer);

  // Applies one update; `gradient` has as many elements as values().
  void Apply(absl::Span<const float> gradient);

  // Counts an update that changes nothing.
  void Skip() { ++version_; }

  absl::Span<const float> values() const { return values_; }
  uint64_t version() const { return version_; }

  // The rate of the next update.
  float learning_rate() const { return optimizer_->LearningRate(applied_ + 1); }

 private:
  const Optimizer* const optimizer_;
  std::vector<float> values_;
  std::vector<float> slots_;
  // Clock of the slice: applied_ and the skipped ones.
  uint64_t version_ = 0;
  uint64_t applied_ = 0;
};

}  // namespace ballast
