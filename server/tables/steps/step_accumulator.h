// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/memory/byte_budget.h"
#include "server/memory/value_buffer.h"
#include "server/tables/steps/row_merge.h"
#include "server/tables/steps/step_messages.h"

namespace ballast {

// Gradients of rows that wait for the other messages of their step.
struct BufferedRows {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;
  // Weight of the gradients; at 0 there are none.
  uint32_t examples = 0;
  // Strictly ascending.
  std::vector<uint64_t> hashes;
  // [hashes, dim]. Shared, and not changed.
  ValueBuffer gradients;
  // Uses of each id; empty: 1.
  std::vector<uint16_t> uses = {};
};

// Buffers the messages of a table's rows until the step's workers have sent all of theirs: all active (not paused)
// workers, or a quorum. Invariant: a worker counts only once its step is complete; what it sent of a step that it
// leaves unfinished is discarded, and nothing of it was applied. What closes a step depends on the order of the calls
// alone, so a replay closes the same; with all workers, it does not depend on that order either. Deliberately knows
// neither the rows nor the threads that apply them. Thread safety: none; guarded by its table.
class StepAccumulator {
 public:
  // `first_step`: the one that is gathered first.
  StepAccumulator(uint32_t workers, uint32_t quorum, uint64_t first_step = 0)
      : quorum_(quorum), first_step_(first_step), gathering_(first_step), applied_(first_step), workers_(workers) {}

  // A step that is complete, for the caller to apply.
  struct Closed {
    uint64_t step = 0;
    // Examples of all workers of the step.
    uint64_t examples = 0;
    // In rank order, and those of a worker in order of sequence.
    std::vector<BufferedRows> messages;
    // Memory that the messages held.
    ByteBudget::Reservation memory;

    // See MergeRows.
    MergedRows Merge(uint32_t dim, bool count_uses = false) const;
  };

  // FAILED_PRECONDITION if no worker can be at `step`, because an earlier one is not applied. Once OK, it stays OK.
  absl::Status CheckStep(uint64_t step) const;

  struct Offered {
    // The message was not used, because its step is over.
    bool dropped = false;
    std::optional<Closed> closed;
  };
  // Takes a message for which CheckStep returned OK, of which no earlier copy was taken. Ends the worker's pause.
  Offered Offer(const StepMessage& place, BufferedRows rows, ByteBudget::Reservation memory);

  // No step waits for the worker until its next message; its messages of an unfinished step are discarded. Returns the
  // step that this closes, if any.
  std::optional<Closed> Pause(uint32_t worker);

  struct CaughtUp {
    // Steps that count as made although their gradients were lost.
    uint64_t lost = 0;
    // Contributions to an older step, which are all that it will get; none for the steps that were lost.
    std::optional<Closed> closed;
  };
  // Handles a worker that has seen the updates of the steps before `seen`, and has ended those before `ended`, of which
  // the table knows fewer because the end of its log was lost. Does nothing if the table is not behind. `seen` and
  // `ended` count at most kMostLost steps ahead. Must not be called while a closed step is being applied; SetApplied
  // must follow.
  static constexpr uint64_t kMostLost = uint64_t{1} << 20;
  CaughtUp CatchUp(uint32_t worker, uint64_t seen, uint64_t ended);

  // True if the message says how many there are of its worker's step, as the first one to do so.
  bool MayEnd(const StepMessage& message) const { return message.messages_of_step > 0 && !open_.IsCounted(message); }

  // The last closed step has been applied to all rows.
  void SetApplied() { applied_ = gathering_; }

  // True if the steps before `step` have been applied.
  bool MayPull(uint64_t step) const { return applied_ >= step; }

  // Memory of the buffered messages.
  uint64_t bytes() const { return memory_.bytes(); }

  // Ranks that a pull at `step` waits for.
  std::vector<uint32_t> Missing(uint64_t step) const;

  // The state at rest, when what was closed has been applied. Shares the gradients.
  struct State {
    struct Worker {
      bool arrived = false;
      bool paused = false;
      // The newest one that sent a message.
      uint64_t incarnation = 0;
      // Examples of its messages in the step being gathered.
      uint32_t examples = 0;
    };
    uint64_t gathering = 0;
    // By rank.
    std::vector<Worker> workers;
    std::vector<StepMessages::Open> open_steps;
    std::vector<BufferedRows> messages;
  };
  State Save() const;
  // INVALID_ARGUMENT unless the state is of that many workers. `memory`: that of its messages.
  absl::Status Restore(State state, ByteBudget::Reservation memory);

 private:
  bool MayClose() const;
  std::optional<Closed> CloseIfComplete();
  Closed Close();
  void Discard(uint32_t worker);

  const uint32_t quorum_;
  const uint64_t first_step_;
  // The step being gathered, and the one before which all are applied.
  uint64_t gathering_;
  uint64_t applied_;
  uint32_t arrivals_ = 0;
  // By rank.
  std::vector<State::Worker> workers_;
  StepMessages open_;
  // By rank and sequence.
  std::map<std::pair<uint32_t, uint64_t>, BufferedRows> buffered_;
  // Until the step closes, also for messages that were discarded.
  ByteBudget::Reservation memory_;
};

}  // namespace ballast
