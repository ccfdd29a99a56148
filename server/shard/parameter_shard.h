// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ballast/internal/v1/storage.pb.h"
#include "ballast/v1/tensor.pb.h"
#include "common/concurrency/clock.h"
#include "common/concurrency/wait_list.h"
#include "common/flight/flight_recorder.h"
#include "common/metrics/caused_waits.h"
#include "common/metrics/histogram.h"
#include "server/memory/byte_budget.h"
#include "server/memory/payload_counts.h"
#include "server/shard/change_sequencer.h"
#include "server/shard/declared_job.h"
#include "server/shard/pull_wait.h"
#include "server/shard/push.h"
#include "server/shard/push_window.h"
#include "server/shard/shard_builder.h"
#include "server/shard/shard_record.h"
#include "server/shard/shard_state.h"
#include "server/shard/shard_tables.h"
#include "server/tensors/slice.h"
#include "server/tensors/tensor_catalog.h"

namespace ballast {

// The result of restoring a shard from its state directory; see ballast.v1.GetStatusResponse.Recovery.
struct ShardRecovery {
  // True if workers may have seen updates that the recovery did not find.
  bool may_have_lost = false;
  uint64_t records = 0, refused_records = 0, cut_bytes = 0;
  double seconds = 0;
};

struct ShardStatus : DeclaredJob::Summary {
  uint64_t pushes = 0, pulls = 0, updates = 0, duplicates = 0, dropped = 0, waiting = 0, max_staleness = 0;
  // Memory used by waiting pulls, its limit, and the number of pulls refused because of that limit.
  uint64_t wait_bytes = 0, wait_bytes_limit = 0, refused_waits = 0;
  double uptime_seconds = 0;
  // Staleness of applied slice gradients; wait time of pulls, 0 for a pull that did not wait.
  v1::Histogram staleness, wait_microseconds;
  // Unset if no pull waits now.
  std::optional<WaitList::Oldest> longest_wait;
  // Not set if the shard started empty.
  std::optional<ShardRecovery> recovery;
  // Updates, summed over slices, that workers had seen and that were missing after recovery.
  uint64_t lost_updates = 0;
  struct Table : ballast::Table::Status {
    uint32_t id = 0;
    std::string name;
  };
  std::vector<Table> tables;
  // Snapshots of the log: written, and failed attempts.
  uint64_t snapshots = 0, snapshot_failures = 0;
  // Not set without a log on disk.
  std::optional<LogStatus> log;
  // Limit on weights and optimizer slots.
  uint64_t state_bytes_limit = 0;
  // Pushes that were refused because they came from an old incarnation.
  uint64_t old_incarnation = 0;
  // Threads' time in applying gradients and in waiting for other changes to the same slice, and bytes of weights that
  // were changed.
  absl::Duration applying, waited_for_locks;
  uint64_t applied_bytes = 0;
};

// Owns one shard of a job: what the job declared, the order of its changes and its waiting pulls. Invariant: a push is
// applied once, whole or not at all. Deliberately knows neither the wire format nor other shards. Size: one method per
// call, and most pass on to what they guard. Thread safety: all methods may be called from any thread.
class ParameterShard {
 public:
  struct Options {
    uint32_t rank = 0;
    // Limit on weights and optimizer slots. FAILED_PRECONDITION above it, because a retry cannot help.
    uint64_t max_state_bytes = uint64_t{1} << 34;
    // Limit on the memory of waiting pulls. RESOURCE_EXHAUSTED above it.
    uint64_t max_wait_bytes = uint64_t{64} << 20;
    // Opens the journal that a job's durability needs; returns null if it needs none. Empty if the shard has no
    // storage. The journal must outlive all calls.
    std::function<absl::StatusOr<ShardJournal*>(const JobConfig&)> open_journal;
    bool keeps_checkpoints = false;
    // Checkpoint that tensors start from instead of their initial values; empty for none.
    std::string resume_from;
    // Also restores the tables, which are new and empty.
    std::function<absl::StatusOr<Resumption>(const std::string& checkpoint, const JobConfig&,
                                             absl::Span<const OwnedTensor>, absl::Span<const std::unique_ptr<Table>>)>
        load_checkpoint;
  };

  ParameterShard(Options options, const Clock* clock);

  // Creates tensors and tables, and returns the slices that the shard owns. A tensor declared without slices is owned
  // whole. An identical repeat is OK; a different one is FAILED_PRECONDITION. A failed declaration changes nothing.
  // Takes time proportional to the data and waits for the previous declaration, while other calls proceed.
  absl::StatusOr<std::vector<OwnedTensor>> Declare(const JobConfig& job, std::vector<OwnedTensor> tensors,
                                                   absl::Span<const OwnedTable> tables = {}) {
    return DeclareFrom(options_.resume_from, job, std::move(tensors), tables);
  }

  // Like Declare, with the state from `checkpoint`; if empty, with initial values.
  absl::StatusOr<std::vector<OwnedTensor>> DeclareFrom(const std::string& checkpoint, const JobConfig& job,
                                                       std::vector<OwnedTensor> tensors,
                                                       absl::Span<const OwnedTable> tables = {});

  // FAILED_PRECONDITION if the shard holds no job or a different one.
  absl::Status CheckJob(absl::string_view job) const { return job_.CheckName(job); }

  // Empty until a job is declared.
  std::string job_name() const { return job_.name(); }
  JobConfig job_config() const { return job_.config(); }

  // Pushes gradients. INVALID_ARGUMENT, NOT_FOUND and FAILED_PRECONDITION change nothing. A retry is safe. `received`
  // counts the gradients of a push that is not refused, and may be null.
  absl::StatusOr<PushOutcome> Push(absl::string_view job, const PushTicket& push,
                                   absl::Span<const GradientView> gradients, PayloadCounts* received = nullptr);

  // Pushes gradients of rows; see ballast.v1.PushRows. Every error changes nothing. A retry is safe. `received`: as
  // above.
  absl::StatusOr<PushOutcome> PushRows(absl::string_view job, PushTicket push, uint32_t messages_of_step,
                                       absl::Span<const RowGradientsView> gradients, PayloadCounts* received = nullptr);

  // Returns the number of weights of a table's row. NOT_FOUND for a table that is not declared.
  absl::StatusOr<uint32_t> RowElements(absl::string_view job, uint32_t table_id) const;

  // Reads rows; see Table::Pull. NOT_FOUND, FAILED_PRECONDITION for a row of another shard.
  absl::StatusOr<PulledRows> PullRows(absl::string_view job, uint32_t table_id, const MessageRows& order,
                                      v1::RowQuery::Missing missing);

  // Counts rows of a table; see ballast.v1.InspectRows. INVALID_ARGUMENT for ranges that the table does not have;
  // NOT_FOUND for a table that is not declared.
  absl::StatusOr<Table::Inspected> InspectRows(absl::string_view job, uint32_t table_id, uint32_t first, uint32_t count,
                                               uint32_t top) const;

  // Returns a table's ranges, for watchers of their rows; they live as long as the shard. NOT_FOUND.
  absl::StatusOr<WatchableTable> Watchable(absl::string_view job, uint32_t table_id) const;

  // Sets the first values of all given slices or of none; see ballast.v1.SetValues. INVALID_ARGUMENT, NOT_FOUND and
  // FAILED_PRECONDITION change nothing. A retry is safe. `received`: as for Push.
  absl::StatusOr<SetOutcome> SetValues(absl::string_view job, absl::Span<const ValueView> values,
                                       PayloadCounts* received = nullptr);

  // Calls `done` once the push is as durable as the job requires, possibly at once. UNAVAILABLE if the disk failed.
  void AwaitDurable(const PushOutcome& push, std::function<void(absl::Status)> done) {
    changes_.AwaitDurable(push.position, std::move(done));
  }

  // Like above, for all changes so far. A caller waits for this before it reveals state that must not be lost.
  void AwaitDurable(std::function<void(absl::Status)> done) {
    changes_.AwaitDurable(changes_.position(), std::move(done));
  }

  // Like above, but waits until a machine failure cannot lose the changes. For state that a caller learns only once.
  void AwaitSynced(std::function<void(absl::Status)> done) {
    changes_.AwaitSynced(changes_.position(), std::move(done));
  }

  // Ends all waits for the worker until its next push. FAILED_PRECONDITION for an old incarnation. A retry is safe.
  absl::Status Pause(absl::string_view job, uint32_t worker, uint64_t incarnation);

  // Reports the newest state that a worker has seen of some slices, and of the tables. A shard restored from a log
  // whose end may be lost advances the slices and tables that are behind, so that no pull waits for a lost gradient,
  // and returns their number. Any other shard changes nothing and returns 0. FAILED_PRECONDITION for an old
  // incarnation. A retry is safe.
  absl::StatusOr<uint32_t> ReportVersions(absl::string_view job, uint32_t worker, uint64_t incarnation,
                                          absl::Span<const SeenSlice> seen, const SeenSteps& rows = {});

  // Like ReportVersions, but acts on any shard. A log replay calls it.
  absl::StatusOr<uint32_t> CatchUp(absl::string_view job, uint32_t worker, uint64_t incarnation,
                                   absl::Span<const SeenSlice> seen, const SeenSteps& rows = {});

  // INVALID_ARGUMENT if a slice is requested twice.
  absl::Status CheckPull(absl::Span<const SliceKey> keys) const { return job_.CheckPull(keys); }

  // Calls `done` once, possibly before returning: OK when all slices may be pulled; DEADLINE_EXCEEDED with a slice
  // and the workers it waited for; UNAVAILABLE when the shard drains; RESOURCE_EXHAUSTED if no more pulls may wait;
  // or CheckPull's error. A pull `by_reader` cannot use memory reserved for workers. The ticket is for CancelPull.
  WaitList::Ticket AwaitPull(absl::string_view job, const PullQuery& pull, absl::Span<const SliceKey> keys,
                             absl::Duration wait, bool by_reader, WaitList::Done done);

  // Like AwaitPull, for rows of tables. `bytes`: memory of the query, which is counted while it waits.
  WaitList::Ticket AwaitRows(absl::string_view job, const PullQuery& pull, absl::Span<const uint32_t> tables,
                             uint64_t bytes, absl::Duration wait, bool by_reader, WaitList::Done done);

  // Ends the wait with CANCELLED, unless it has already ended.
  void CancelPull(WaitList::Ticket ticket) { waits_.End(ticket, absl::CancelledError("the caller canceled the call")); }

  // Returns one slice's current values, and records for `worker`, if set, that it received them.
  absl::StatusOr<PulledValues> Pull(SliceKey key, std::optional<uint32_t> worker);

  // Ends all waits and refuses new pushes and waits with `reason` (UNAVAILABLE, ABORTED, ...). Pulls at step 0 never
  // wait and still succeed, so the trained weights can be saved.
  void Close(absl::Status reason);

  // Returns the state of the shard between two pushes. Calls `at_rest` while no change can happen.
  ShardState Capture(absl::FunctionRef<void()> at_rest);

  // Like Capture, for checkpoint `id`. If `since` is the last checkpoint for which it was called, and at most half of
  // the tables' bytes have changed since then, tables have only the rows that changed; `since_checkpoint` says that.
  ShardState CaptureCheckpoint(uint64_t id, uint64_t since);

  // Like Capture, in pieces, so that little memory is shared at a time: first everything except the slices and tables,
  // then some slices, or some ranges of a table. Skips what the shard does not have.
  ShardState CaptureOutline(absl::FunctionRef<void()> at_rest);
  std::vector<ShardState::SliceEntry> CaptureSlices(absl::Span<const SliceKey> keys, absl::FunctionRef<void()> at_rest);
  std::optional<ShardState::TableEntry> CaptureRanges(uint32_t table, uint32_t first, uint32_t count,
                                                      absl::FunctionRef<void()> at_rest);

  // Restores a captured state; must be called first. FAILED_PRECONDITION or INVALID_ARGUMENT on a mismatch.
  absl::Status Restore(ShardState capture);

  // Like Restore, in two steps: builds a separate shard within this shard's limits, then adopts it atomically.
  // Neither step blocks other calls for long.
  absl::StatusOr<ShardBuilder> BeginRestore(JobConfig job, std::vector<OwnedTensor> tensors,
                                            absl::Span<const OwnedTable> tables = {}) const;
  absl::Status Adopt(BuiltShard built);

  // Records the recovery for status(). Must be called before the shard serves.
  void NoteRecovery(const ShardRecovery& recovery);

  // Counts a snapshot attempt for status().
  void NoteSnapshot(bool written) { ++(written ? counts_.snapshots : counts_.snapshot_failures); }

  // Records all later changes in `journal` before they are applied. Must be called before the shard serves.
  void StartJournal(ShardJournal* journal);

  ShardStatus status() const;

  // Returns the waits that workers have caused since the process began.
  std::vector<v1::CausedWait> caused_waits() const { return caused_waits_.List(); }

 private:
  // Finds a table; an empty job means the only one.
  absl::StatusOr<Table*> FindForReader(absl::string_view job, uint32_t table_id) const;
  struct Counts {
    std::atomic<uint64_t> pushes{0}, pulls{0}, duplicates{0}, dropped{0}, lost_updates{0};
    std::atomic<uint64_t> snapshots{0}, snapshot_failures{0};
    std::atomic<uint64_t> apply_nanoseconds{0}, lock_wait_nanoseconds{0}, applied_bytes{0};
    Histogram staleness, wait_microseconds;

    // Adds the work of a push, in part of which it waited.
    void AddWork(absl::Duration took, absl::Duration waited, uint64_t bytes);
  };

  // Opens the journal that the job's durability needs; null if it needs none.
  absl::StatusOr<ShardJournal*> OpenJournal(const JobConfig& job) const;
  // Records the workers for which a wait timed out, and requests a flight dump. `event`: the end of the wait.
  void RecordTimeout(const PullWait& wait, FlightEvent event, absl::Duration waited, const absl::Status& timeout) const;
  // `bytes`: memory of the query besides what is awaited.
  WaitList::Ticket Await(const PullQuery& pull, std::vector<Awaited> awaited, uint64_t bytes, absl::Duration wait,
                         bool by_reader, WaitList::Done done);
  // Adds the waits that this push completes to `released`.
  PushOutcome Apply(const PushTicket& push, absl::Span<const GradientView> gradients, const CheckedPush& checked,
                    const ChangeSequencer::Places& places, ChangeSequencer::Released& released);
  // Adds the waits that this completes to `released`.
  absl::StatusOr<uint32_t> TakeSeen(const ChangeSource& source, absl::Span<const SeenSlice> seen,
                                    absl::Span<Slice* const> slices, const SeenSteps& rows,
                                    ChangeSequencer::Released& released);
  absl::StatusOr<SetOutcome> TakeValues(absl::Span<const ValueView> values, std::vector<CheckedValues> checked,
                                        ChangeSequencer::Released& released);

  const Options options_;
  const Clock* const clock_;
  const absl::Time started_;
  // Held while a declaration creates tensors, so that declarations run one at a time; taken before the gate. No other
  // call takes it.
  absl::Mutex declaring_;
  // Held shared by a push of rows from its check until it is applied, and exclusively while tables are added; taken
  // before the gate. A message counts at each table, so a replay must find the same tables.
  absl::Mutex adding_tables_;
  mutable absl::Mutex mutex_;
  std::optional<ShardRecovery> recovery_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> may_have_lost_{false};
  Counts counts_;
  CausedWaits caused_waits_;
  DeclaredJob job_;
  ShardTables tables_;
  ChangeSequencer changes_;
  // Memory of waiting pulls: by members that may push, and by readers.
  ByteBudget worker_waits_, reader_waits_;
  // Declared last: its destructor ends the waits, whose callbacks use the other fields.
  WaitList waits_;
};

}  // namespace ballast
