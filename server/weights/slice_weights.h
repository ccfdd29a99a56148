// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"
#include "server/memory/value_buffer.h"
#include "server/weights/optimizers/gradient.h"
#include "server/weights/optimizers/optimizer.h"

namespace ballast {

// Owns one slice's weights, their optimizer slots, and the number of updates. Deliberately knows neither workers nor
// policies. Thread safety: none; guarded by its slice.
class SliceWeights {
 public:
  // Factors of the gradient and of the learning rate.
  struct ApplyOptions {
    float gradient_scale = 1;
    float rate_scale = 1;
  };

  // Starts with initial values. `optimizer` must outlive this.
  SliceWeights(const v1::TensorSpec& spec, const v1::SliceRange& range, const Optimizer* optimizer);

  // Starts without values; Restore must be called first.
  SliceWeights(const v1::SliceRange& range, const Optimizer* optimizer);

  // `gradient` must have as many elements as values().
  void Apply(const Gradient& gradient) { Apply(gradient, ApplyOptions()); }
  void Apply(const Gradient& gradient, const ApplyOptions& options);

  // Records an accepted push. `position`: the job's progress, PushHeader.schedule_position; it never decreases.
  void Reach(std::optional<double> position) {
    position_ = Furthest(position);
    pushed_ = true;
  }

  // Replaces the initial values, but not the slots. `checksum` identifies the values. Must precede any push.
  void SetValues(ValueBuffer values, uint64_t checksum) {
    values_ = std::move(values);
    set_checksum_ = checksum;
  }
  // Checksum of the set values, if any were set.
  std::optional<uint64_t> set_checksum() const { return set_checksum_; }
  // True if a push was accepted.
  bool pushed() const { return pushed_ || version_ > 0; }

  // Counts an update that changes nothing.
  void Skip() { ++version_; }
  // Counts skipped updates up to that version, at most kMostSkipped.
  static constexpr uint64_t kMostSkipped = uint64_t{1} << 20;
  void SkipTo(uint64_t version) { version_ = std::max(version_, std::min(version, version_ + kMostSkipped)); }

  absl::Span<const float> values() const { return values_.values(); }
  // Values that stay valid after the lock is released; later updates do not change them.
  ValueBuffer ShareValues() const { return values_; }
  uint64_t version() const { return version_; }
  // Number of updates that were not skipped.
  uint64_t applied() const { return applied_; }

  // The whole state, shared; later updates do not change it.
  struct State {
    uint64_t version = 0;
    uint64_t applied = 0;
    std::optional<double> position;
    bool pushed = false;
    std::optional<uint64_t> set_checksum;
    // Weights, then the optimizer's slots.
    std::vector<ValueBuffer> arrays;
  };
  State Share() const;

  // Restores state from weights of the same spec, range and optimizer: equally many arrays and elements. The first
  // array is where clients can read it.
  void Restore(State state);

  // The learning rate of the next update by a push at that position.
  float LearningRate(std::optional<double> position) const {
    return optimizer_->LearningRate(applied_ + 1, Furthest(position));
  }

 private:
  // A missing position compares below 0.
  std::optional<double> Furthest(std::optional<double> position) const { return std::max(position_, position); }

  const Optimizer* const optimizer_;
  ValueBuffer values_;
  // One per optimizer slot. Only captures share them; their alignment equals that of the values.
  std::vector<ValueBuffer> slots_;
  // The slice's clock: applied_ plus the skipped updates.
  uint64_t version_ = 0;
  uint64_t applied_ = 0;
  // The furthest position of the accepted pushes.
  std::optional<double> position_;
  bool pushed_ = false;
  std::optional<uint64_t> set_checksum_;
};

}  // namespace ballast
