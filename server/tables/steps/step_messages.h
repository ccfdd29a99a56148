// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace ballast {

// A message's place in a step.
struct StepMessage {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint64_t step = 0;
  // See ballast.v1.PushRowsRequest.
  uint32_t messages_of_step = 0;
};

// Owns the counts of messages by which a shard knows when a worker's step is complete, although messages may overtake
// each other: the last one says how many there are. Invariant: the counts depend only on the order of the messages, so
// a replay has the same. Deliberately does not know what the messages carry. Thread safety: none; guarded by its table.
class StepMessages {
 public:
  // Steps of a worker that may be incomplete at once; of more, the oldest is forgotten. A worker that never ends a step
  // therefore takes no more memory.
  static constexpr size_t kMaxOpenSteps = 64;

  // A step that is not complete.
  struct Open {
    uint32_t worker = 0;
    uint64_t incarnation = 0;
    uint64_t step = 0;
    uint32_t received = 0;
    // 0 until the message arrives that says it.
    uint32_t expected = 0;
  };

  // Counts a message of which no earlier copy was counted; true if it completes its step. A new incarnation sends its
  // steps whole again, so the counts of the earlier one end, and its messages that come later complete nothing.
  bool Add(const StepMessage& message);

  // True if a message of that step has said how many there are, and it is not complete.
  bool IsCounted(const StepMessage& message) const;

  // Forgets the worker's incomplete steps; or those before `step`.
  void Forget(uint32_t worker);
  void Forget(uint32_t worker, uint64_t step);

  // By worker and step.
  std::vector<Open> Save() const;
  void Restore(absl::Span<const Open> open);

 private:
  using Steps = std::map<uint64_t, Open>;
  std::map<uint32_t, Steps> workers_;
};

}  // namespace ballast
