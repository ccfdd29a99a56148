// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ballast/v1/table.pb.h"
#include "common/concurrency/wait_list.h"
#include "common/tables/row_hash.h"
#include "common/tables/row_initializer.h"
#include "server/memory/byte_budget.h"
#include "server/tables/row_gradients.h"
#include "server/tables/sparse_table.h"
#include "server/tables/steps/step_accumulator.h"
#include "server/tables/steps/step_messages.h"
#include "server/tables/steps/turn_queue.h"
#include "server/tables/steps/worker_clocks.h"
#include "server/tables/table_memory.h"
#include "server/tables/table_ticks.h"
#include "server/tables/watch/table_publisher.h"
#include "server/weights/optimizers/row_optimizer.h"

namespace ballast {

// A table and the ranges of it that a shard owns.
struct OwnedTable {
  v1::TableSpec spec;
  std::vector<v1::RangeSpan> spans;
};

// Rows as a pull reads them, in the order of the message's ids.
struct PulledRows {
  // [ids, dim].
  ValueBuffer values;
  std::vector<uint32_t> versions;
  // See ballast.v1.RowValues.
  std::string present;
  std::optional<uint64_t> clock;
};

// Owns a table's part at one shard: its rows, the rule by which gradients change them, and its clock. Deliberately
// knows neither the job nor the wire. Size: one method per call of the shard; rows, steps, clocks and ticks have
// classes of their own, and what is left here is the lock under which a turn is taken of all of them. Thread safety:
// all methods may be called from any thread.
class Table {
 public:
  // The rule by which the gradients of several workers meet.
  struct Policy {
    // Whose staleness s divides the learning rate by 1 + s, if gradients are applied as they come.
    enum class Scaling { kNone, kByRow, kByTable };
    Scaling scaling = Scaling::kNone;
    // Number of the job's workers.
    uint32_t workers = 0;
    // Number of workers that complete a step, if a step's gradients are applied together; otherwise 0.
    uint32_t quorum = 0;
    // Steps that a worker may be ahead of the slowest, if their clocks bound staleness.
    std::optional<uint64_t> steps_ahead;
  };

  // INVALID_ARGUMENT for a specification or spans that are not valid, FAILED_PRECONDITION with reason MEMORY_LIMIT if
  // not even the ranges fit without rows. `memory` outlives the table, which it limits.
  static absl::StatusOr<std::unique_ptr<Table>> Make(OwnedTable table, const Policy& policy, TableMemory* memory);

  const OwnedTable& owned() const { return owned_; }
  const v1::TableSpec& spec() const { return owned_.spec; }

  // FAILED_PRECONDITION with reason NOT_OWNER if the shard does not own the range of one of the hashes.
  absl::Status CheckOwned(absl::Span<const uint64_t> hashes) const;

  // Reserves memory for those of the rows that do not exist. RESOURCE_EXHAUSTED above the limit.
  absl::StatusOr<ByteBudget::Reservation> MakeRoom(absl::Span<const uint64_t> hashes) const;

  // Counts the memory of gradients that wait for their step; of no bytes if they do not wait. RESOURCE_EXHAUSTED above
  // the limit, except for a message that may complete a step, because then others can be freed.
  absl::StatusOr<ByteBudget::Reservation> ReserveGradients(const StepMessage& message, uint64_t bytes) const;

  // FAILED_PRECONDITION if no worker can be at that step, because an earlier one is not applied.
  absl::Status CheckStep(uint64_t step) const;

  // A message to the shard, with or without rows of this table.
  struct Message {
    StepMessage place;
    uint64_t sequence = 0;
    uint32_t examples = 0;
    // See PushHeader.
    std::optional<double> schedule_position;
    // When it came; 0 if no rows expire by time.
    uint64_t unix_seconds = 0;
  };

  // A push's turn among the changes of the table.
  struct Turn {
    uint64_t clock = 0;
    RowTime time;
    // See BatchPush.
    uint64_t draw = 0;
    float learning_rate = 0;
    // Divides the learning rate by 1 + this: steps that have ended since the rows were pulled, if the policy scales by
    // the staleness of the table.
    uint64_t staleness = 0;
    // The gradients wait for their step, or are not used because it is over.
    bool kept = false, dropped = false;
    // See TurnQueue; not set if no clock waits for changes to be applied.
    std::optional<uint64_t> number;
    // The step that the message completes, in place of its own gradients.
    std::optional<StepAccumulator::Closed> closed;
    // See SparseTable::ReserveOrder; empty if changes are not ordered.
    std::vector<uint64_t> places;
    // Rows of this range and of later ones are left as they are.
    uint32_t end_range = std::numeric_limits<uint32_t>::max();
  };
  // Takes the next turn. Each message to the shard takes one, with or without rows here: from these, the table knows
  // which steps are complete. Turns of `ordered` changes must be taken in the order of their records, and each must be
  // used. `memory`: from ReserveGradients. Shares the gradients, which are not changed later.
  Turn TakeTurn(const Message& message, const RowGradients& gradients, ByteBudget::Reservation memory, bool ordered);

  // Like TakeTurn, for a worker that pauses. No step waits for it, and what it has sent of an incomplete step is
  // forgotten; when it returns, it sends that again.
  Turn TakePause(uint32_t worker);

  struct Applied {
    BatchOutcome rows;
    // Pulls that may go on.
    std::vector<WaitList::Ticket> released;
  };
  // Applies the gradients of a turn, all of whose rows the shard owns.
  Applied Apply(const RowGradients& gradients, const Turn& turn);

  // Handles a worker that has seen the updates of the steps before `seen`, and has ended those before `ended`, of which
  // the table knows fewer because the end of its log was lost. The lost steps count as made: the table's clock
  // advances, its rows stay. Changes nothing if the table is not behind. Call it while no turn is in use.
  struct CaughtUp {
    // Steps that were lost; those of each worker under bounded staleness.
    uint64_t lost_steps = 0;
    std::vector<WaitList::Ticket> released;
  };
  CaughtUp CatchUp(uint32_t worker, uint64_t seen, uint64_t ended);

  // True if a pull at that step need not wait.
  bool MayPull(uint64_t step) const;
  // Like MayPull. If false, the update that allows the pull releases `ticket`, unless Forget is called first.
  bool MayPullOrRelease(uint64_t step, WaitList::Ticket ticket);
  void Forget(uint64_t step, WaitList::Ticket ticket);
  // Ranks that a pull at that step waits for.
  std::vector<uint32_t> Missing(uint64_t step) const;
  // True if a pull at that step may wait because the table was declared after training began, without its first_step:
  // no step has ended here, though a worker that is so far must have ended one.
  bool MayLackFirstStep(uint64_t step) const;

  PulledRows Pull(const MessageRows& order, v1::RowQuery::Missing missing) const;

  // Frees the memory of rows that have expired, of one range; nothing else changes. `index`: below the number of ranges
  // at this shard.
  uint64_t Sweep(uint32_t index);

  struct Inspected {
    v1::RowStatistics statistics;
    // Rows with the most updates.
    std::vector<v1::HotRow> top;
    // The first range that was not read.
    uint32_t next = 0;
  };
  // Counts the rows of ranges [first, first + count), of which those at this shard are read. Stops after about 100 ms,
  // but reads at least one.
  Inspected Inspect(uint32_t first, uint32_t count, uint32_t top) const;

  // The table besides its rows.
  struct State {
    // Steps of workers that have ended here.
    uint64_t clock = 0;
    // The furthest schedule position of the pushes.
    std::optional<double> position;
    // Steps of which some messages have come.
    std::vector<StepMessages::Open> open_steps;
    // Gradients that wait for their step, and who has sent them. The step follows from the clock.
    std::optional<StepAccumulator::State> step;
    // Not set if no clocks bound staleness.
    std::optional<WorkerClocks::State> clocks = {};
    std::vector<TableTicks::Tick> ticks = {};
    // Numbers for people. A standby that joins during pushes may count fewer.
    v1::EvictedRows evicted = {};
    uint64_t not_admitted = 0;
  };
  State state() const;
  // INVALID_ARGUMENT if the state is of another policy or number of workers. Without `state.step`, a table that has
  // steps begins the one after its clock; without `state.clocks`, workers' clocks begin as in a new table.
  absl::Status SetState(State state);

  // See SparseTable.
  std::unique_ptr<TableCapture> BeginCapture() const { return rows_.BeginCapture(); }
  std::unique_ptr<TableCapture> BeginCapture(uint32_t first, uint32_t count) const {
    return rows_.BeginCapture(first, count);
  }

  // Number of rows, counted as TableChanges does, that have changed since the capture for that checkpoint; nullopt if
  // it was not the last one.
  std::optional<uint64_t> ChangedSince(uint64_t checkpoint) const;
  // Like BeginCapture, for a checkpoint; from now on the table knows the changes since then. With `changes_alone`,
  // which requires that ChangedSince is set for some checkpoint, captures the rows that have changed since that one.
  std::unique_ptr<TableCapture> BeginCheckpoint(uint64_t checkpoint, bool changes_alone);
  // The ranges of this shard, for watchers of their rows.
  WatchableTable watchable();

  // Adds rows of a capture, all of which the shard owns. `images`: see RowsPiece. DATA_LOSS if they cannot be rows of
  // this table, RESOURCE_EXHAUSTED if there is no memory for them.
  absl::Status Restore(absl::Span<const uint64_t> hashes, absl::string_view images);
  // Continues the counts of uses of ranges [first, first + count), which the shard owns; see RowsPiece. DATA_LOSS if
  // they are not of this table.
  absl::Status RestoreUses(uint32_t first, uint32_t count, absl::Span<const absl::string_view> uses);
  // Like Restore, for a capture of changes: removes rows, then adds or replaces others.
  absl::Status RestoreChanges(absl::Span<const uint64_t> removed, absl::Span<const uint64_t> hashes,
                              absl::string_view images);
  // Bytes of a row's image.
  size_t image_bytes() const { return rows_.layout().image_words() * sizeof(uint32_t); }

  uint64_t rows() const { return rows_.rows(); }

  struct Status {
    uint64_t rows = 0;
    uint64_t bytes = 0;
    uint64_t clock = 0;
    v1::EvictedRows evicted = {};
    uint64_t waiting = 0;
    uint64_t not_admitted = 0;
    // Memory of gradients that wait for their step.
    uint64_t buffered_bytes = 0;
  };
  Status status() const;

 private:
  Table(OwnedTable owned, RowInitializer initializer, std::unique_ptr<RowOptimizer> optimizer, const Policy& policy,
        TableMemory* memory, ByteBudget::Reservation room);
  BatchOutcome ApplyRows(absl::Span<const uint64_t> hashes, const Turn& turn, BatchPush push);
  bool MayPullLocked(uint64_t step) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::vector<WaitList::Ticket> TakeReleasedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if the end of a step shows only once the step is applied.
  bool QueuesTurnsLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return clocks_.has_value() || ScalesByTable(); }
  bool ScalesByTable() const { return policy_.scaling == Policy::Scaling::kByTable; }
  absl::Status NotOwner(uint32_t range) const;
  // Sets a turn's clock, and what follows from it. `worker`: whose message it is; not set for a step of all.
  void SetMoment(std::optional<uint32_t> worker, Turn& turn) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  RowTime TimeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Restore(absl::Span<const uint64_t> hashes, absl::string_view images, bool replace);
  absl::Status Damaged(absl::string_view what) const;
  // Memory that a new row takes, with its part of the index and of the free space that growth leaves.
  uint64_t BytesOfNewRow() const;

  const OwnedTable owned_;
  const Policy policy_;
  // Initial values by hash.
  class Initial : public InitialRows {
   public:
    Initial(RowInitializer values, uint32_t table_id) : values_(std::move(values)), table_id_(table_id) {}
    void Fill(uint64_t hash, absl::Span<float> weights) const override {
      values_.Fill(RowIdOf(hash, table_id_), weights);
    }

   private:
    const RowInitializer values_;
    const uint32_t table_id_;
  };
  const Initial initial_;
  const std::unique_ptr<RowOptimizer> optimizer_;
  TableMemory* const memory_;
  // The memory of the ranges themselves.
  const ByteBudget::Reservation room_;
  SparseTable rows_;

  mutable absl::Mutex mutex_;
  uint64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<double> position_ ABSL_GUARDED_BY(mutex_);
  TableTicks ticks_ ABSL_GUARDED_BY(mutex_);
  v1::EvictedRows evicted_ ABSL_GUARDED_BY(mutex_);
  uint64_t not_admitted_ ABSL_GUARDED_BY(mutex_) = 0;
  StepMessages messages_ ABSL_GUARDED_BY(mutex_);
  // Not set if gradients are applied as they come.
  std::optional<StepAccumulator> steps_ ABSL_GUARDED_BY(mutex_);
  // Not set unless clocks bound staleness.
  std::optional<WorkerClocks> clocks_ ABSL_GUARDED_BY(mutex_);
  TurnQueue turns_ ABSL_GUARDED_BY(mutex_);
  // Waiting pulls, by step.
  std::set<std::pair<uint64_t, WaitList::Ticket>> waiting_ ABSL_GUARDED_BY(mutex_);
  // The last checkpoint for which the rows were captured, and what has changed since then; null before the first one.
  uint64_t checkpoint_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<TableChanges> since_checkpoint_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
