// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace ballast {

// Owns the changes of clocks whose turns at a table were taken, but are not all applied. Invariant: a change is handed
// out in the order of the turns, once its turn and all before it are applied; so a clock shows the end of a step only
// after all of its gradients, which other threads may apply. Deliberately does not know what a turn applies. Thread
// safety: none; guarded by its table.
class TurnQueue {
 public:
  struct Change {
    uint32_t worker = 0;
    // Number of steps that the worker has ended; not set for a pause.
    std::optional<uint64_t> finished;
  };

  // Returns the number of the turn.
  uint64_t Take(std::optional<Change> change) {
    if (EndsStep(change)) ++open_ends_;
    turns_.push_back({change, false});
    return first_ + turns_.size() - 1;
  }

  // Call it once for each turn. Returns the changes that are now to be made, in order.
  std::vector<Change> SetApplied(uint64_t turn) {
    turns_[turn - first_].applied = true;
    std::vector<Change> due;
    while (!turns_.empty() && turns_.front().applied) {
      const std::optional<Change>& change = turns_.front().change;
      if (change.has_value()) due.push_back(*change);
      if (EndsStep(change)) --open_ends_;
      turns_.pop_front();
      ++first_;
    }
    return due;
  }

  // Number of ends of steps that were taken, but not handed out.
  uint64_t open_ends() const { return open_ends_; }

 private:
  static bool EndsStep(const std::optional<Change>& change) {
    return change.has_value() && change->finished.has_value();
  }

  struct Turn {
    std::optional<Change> change;
    bool applied = false;
  };
  // Number of the first turn in the queue.
  uint64_t first_ = 0;
  std::deque<Turn> turns_;
  uint64_t open_ends_ = 0;
};

}  // namespace ballast
