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

// One slice's weights, the optimizer's slots beside them, and how many updates they have seen.
// Knows nothing of workers or policies. Thread safety: none; its slice guards it.
class SliceWeights {
 public:
  // How an update departs from the plain one.
  struct ApplyOptions {
    // The gradient and the learning rate are multiplied by them.
    float gradient_scale = 1;
    float rate_scale = 1;
  };

  // With initial values. `optimizer` must outlive this.
  SliceWeights(const v1::TensorSpec& spec, const v1::SliceRange& range, const Optimizer* optimizer);

  // With no values yet: Restore comes before anything else.
  SliceWeights(const v1::SliceRange& range, const Optimizer* optimizer);

  // Applies one update; `gradient` has as many elements as values().
  void Apply(const Gradient& gradient) { Apply(gradient, ApplyOptions()); }
  void Apply(const Gradient& gradient, const ApplyOptions& options);

  // A push is taken. `position`: how far the job is by it, PushHeader.schedule_position; it never goes back.
  void Reach(std::optional<double> position) {
    position_ = Furthest(position);
    pushed_ = true;
  }

  // Replaces the initial values; the slots are untouched. `checksum`: what tells these from others. Before any push.
  void SetValues(ValueBuffer values, uint64_t checksum) {
    values_ = std::move(values);
    set_checksum_ = checksum;
  }
  // Of the values that were set, if any were.
  std::optional<uint64_t> set_checksum() const { return set_checksum_; }
  // Whether a push was taken.
  bool pushed() const { return pushed_ || version_ > 0; }

  // Counts an update that changes nothing.
  void Skip() { ++version_; }
  // Counts as many as are missing to that version, at most kMostSkipped.
  static constexpr uint64_t kMostSkipped = uint64_t{1} << 20;
  void SkipTo(uint64_t version) { version_ = std::max(version_, std::min(version, version_ + kMostSkipped)); }

  absl::Span<const float> values() const { return values_.values(); }
  // Those values, for longer than the lock is held: later updates leave them as they are.
  ValueBuffer ShareValues() const { return values_; }
  uint64_t version() const { return version_; }
  // Updates that were not skipped.
  uint64_t applied() const { return applied_; }

  // All of it, shared: later updates leave it as it is.
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

  // As captured from weights of the same spec, range and optimizer: as many arrays of as many elements.
  void Restore(State state);

  // The rate of the next update, by a push at that position.
  float LearningRate(std::optional<double> position) const {
    return optimizer_->LearningRate(applied_ + 1, Furthest(position));
  }

 private:
  // Nothing is before 0.
  std::optional<double> Furthest(std::optional<double> position) const { return std::max(position_, position); }

  const Optimizer* const optimizer_;
  ValueBuffer values_;
  // One for each of the optimizer's slots. Only captures share them; they are as well aligned as the values.
  std::vector<ValueBuffer> slots_;
  // Clock of the slice: applied_ and the skipped ones.
  uint64_t version_ = 0;
  uint64_t applied_ = 0;
  // The furthest of the pushes that were taken.
  std::optional<double> position_;
  bool pushed_ = false;
  std::optional<uint64_t> set_checksum_;
};

}  // namespace ballast
