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
#include "common/metrics/histogram.h"
#include "server/memory/byte_budget.h"
#include "server/shard/pull_wait.h"
#include "server/shard/push.h"
#include "server/shard/push_window.h"
#include "server/shard/shard_builder.h"
#include "server/shard/shard_journal.h"
#include "server/shard/shard_state.h"
#include "server/tensors/slice.h"
#include "server/tensors/tensor_catalog.h"

namespace ballast {

// What a worker has seen of a slice: ballast.v1.ReportVersionsRequest.Slice.
struct SeenSlice {
  SliceKey key;
  uint64_t version = 0;
  uint64_t finished_steps = 0;
};

// What a shard found in its state directory: ballast.v1.GetStatusResponse.Recovery.
struct ShardRecovery {
  // Whether workers may have seen what is not in it.
  bool may_have_lost = false;
  uint64_t records = 0, refused_records = 0, cut_bytes = 0;
  double seconds = 0;
};

struct ShardStatus {
  JobConfig job;
  uint64_t tensors = 0, slices = 0, state_bytes = 0;
  uint64_t pushes = 0, pulls = 0, updates = 0, duplicates = 0, dropped = 0, waiting = 0, max_staleness = 0;
  // Memory of the pulls that wait, the most that it may be, and pulls that were refused for it.
  uint64_t wait_bytes = 0, wait_bytes_limit = 0, refused_waits = 0;
  double uptime_seconds = 0;
  bool draining = false;
  // Of applied slice gradients; of pulls, 0 for those that did not wait.
  v1::Histogram staleness, wait_microseconds;
  // By rank: pushes taken, and where the worker's numbers stand.
  std::vector<PushWindow::Count> workers_pushes;
  // None for a shard that began empty.
  std::optional<ShardRecovery> recovery;
  // Updates, summed over slices, that workers had seen and that the recovery did not find.
  uint64_t lost_updates = 0;
  // Of the log: written, and attempts that failed.
  uint64_t snapshots = 0, snapshot_failures = 0;
};

// One shard: the slices of one job that live in this process, and the push windows of its workers.
// Invariant: a push is applied once, and as a whole or not at all. Deliberately knows neither the wire nor the other
// shards. Thread safety: all methods may be called from any thread.
class ParameterShard {
 public:
  struct Options {
    uint32_t rank = 0;
    // Weights and slots; FAILED_PRECONDITION beyond it, for no retry helps.
    uint64_t max_state_bytes = uint64_t{1} << 34;
    // Memory of the pulls that wait; RESOURCE_EXHAUSTED beyond it.
    uint64_t max_wait_bytes = uint64_t{64} << 20;
    // Opens what a job's durability asks for; may answer with null where that needs no journal. Empty where the shard
    // has nowhere to keep anything. The journal outlives all calls.
    std::function<absl::StatusOr<ShardJournal*>(const JobConfig&)> open_journal;
    // Whether it takes part in checkpoints.
    bool keeps_checkpoints = false;
    // The checkpoint that tensors begin with, in place of their initial values; empty: none.
    std::string resume_from;
    // Reads a checkpoint's state of those tensors.
    std::function<absl::StatusOr<Resumption>(const std::string& checkpoint, const JobConfig&,
                                             absl::Span<const OwnedTensor>)>
        load_checkpoint;
  };

  ParameterShard(Options options, const Clock* clock);

  // Creates tensors; answers with the slices owned. The same again is OK, anything different FAILED_PRECONDITION. A
  // declaration that fails changes nothing. A tensor without slices is owned whole. Takes as long as there is data, and
  // waits for the declaration before it, while all other calls go on.
  absl::StatusOr<std::vector<OwnedTensor>> Declare(const JobConfig& job, std::vector<OwnedTensor> tensors) {
    return DeclareFrom(options_.resume_from, job, std::move(tensors));
  }

  // The same with the state of that checkpoint; empty: with initial values.
  absl::StatusOr<std::vector<OwnedTensor>> DeclareFrom(const std::string& checkpoint, const JobConfig& job,
                                                       std::vector<OwnedTensor> tensors);

  // FAILED_PRECONDITION where this is not the job that the shard holds.
  absl::Status CheckJob(absl::string_view job) const;

  // Empty until one is declared.
  std::string job_name() const;

  // Hands in gradients. INVALID_ARGUMENT, NOT_FOUND and FAILED_PRECONDITION change nothing. A retry is safe.
  absl::StatusOr<PushOutcome> Push(absl::string_view job, const PushTicket& push,
                                   absl::Span<const GradientView> gradients);

  // Sets the first values of slices, all of them or none; ballast.v1.SetValues. INVALID_ARGUMENT, NOT_FOUND and
  // FAILED_PRECONDITION change nothing. A retry is safe.
  absl::StatusOr<SetOutcome> SetValues(absl::string_view job, absl::Span<const ValueView> values);

  // Calls `done` once what the job's durability promises of that push holds; may call it before returning. UNAVAILABLE
  // where the disk failed.
  void AwaitDurable(const PushOutcome& push, std::function<void(absl::Status)> done) {
    AwaitDurable(push.position, std::move(done));
  }

  // The same of all that has changed the shard until now: what a caller saw or was told of must not be lost.
  void AwaitDurable(std::function<void(absl::Status)> done) {
    AwaitDurable(last_position_.load(std::memory_order_acquire), std::move(done));
  }

  // The same, when what has changed the shard until now is safe from a machine's death, too. For what is told once and
  // is never repeated.
  void AwaitSynced(std::function<void(absl::Status)> done);

  // Nobody waits for the worker until its next push. FAILED_PRECONDITION for an old incarnation. A retry is safe.
  absl::Status Pause(absl::string_view job, uint32_t worker, uint64_t incarnation);

  // What a worker has seen of slices. A shard that came back from its log, and may have lost the end of it, takes over
  // what it does not know, and answers how many slices that were; nobody waits for a lost gradient then. Any other
  // shard changes nothing and answers 0. FAILED_PRECONDITION for an old incarnation. A retry is safe.
  absl::StatusOr<uint32_t> ReportVersions(absl::string_view job, uint32_t worker, uint64_t incarnation,
                                          absl::Span<const SeenSlice> seen);

  // The same on any shard: how a log repeats it.
  absl::StatusOr<uint32_t> CatchUp(absl::string_view job, uint32_t worker, uint64_t incarnation,
                                   absl::Span<const SeenSlice> seen);

  // INVALID_ARGUMENT if a slice is asked for twice.
  absl::Status CheckPull(absl::Span<const SliceKey> keys) const;

  // Calls `done` once when all slices may be pulled, or with DEADLINE_EXCEEDED naming a slice and the workers waited
  // for, UNAVAILABLE when the shard drains, RESOURCE_EXHAUSTED if no more pulls may wait, or as CheckPull. May call it
  // before returning. A pull `by_reader` cannot take the memory that the workers' pulls need. Answers what CancelPull
  // takes.
  WaitList::Ticket AwaitPull(absl::string_view job, const PullQuery& pull, absl::Span<const SliceKey> keys,
                             absl::Duration wait, bool by_reader, WaitList::Done done);

  // Ends the wait with CANCELLED, unless it has ended.
  void CancelPull(WaitList::Ticket ticket) { waits_.End(ticket, absl::CancelledError("the caller has gone")); }

  // One slice's values as they are now, for `worker` if it is one that asks.
  absl::StatusOr<PulledValues> Pull(SliceKey key, std::optional<uint32_t> worker);

  // Ends all waits and refuses new pushes and waits with `reason` (UNAVAILABLE, ABORTED …) from now on. Pulls at step
  // 0, which never wait, go on: what was learnt can still be saved.
  void Close(absl::Status reason);

  // The shard between two pushes; none is taken meanwhile. `at_rest` is called while the shard stands still.
  ShardState Capture(absl::FunctionRef<void()> at_rest);

  // The same piece by piece, so that little is shared at a time: all but the slices, and then some of them. A key
  // that the shard does not have is left out.
  ShardState CaptureOutline(absl::FunctionRef<void()> at_rest);
  std::vector<ShardState::SliceEntry> CaptureSlices(absl::Span<const SliceKey> keys, absl::FunctionRef<void()> at_rest);

  // As captured. Before anything else is called; FAILED_PRECONDITION, INVALID_ARGUMENT and NOT_FOUND say what does not
  // fit.
  absl::Status Restore(ShardState capture);

  // The same in two steps: a shard is put together beside this one, as this one's limits allow, and then taken over
  // at once. Calls to this one wait for neither.
  absl::StatusOr<ShardBuilder> BeginRestore(JobConfig job, std::vector<OwnedTensor> tensors) const;
  absl::Status Adopt(BuiltShard built);

  // What its restoration took, for status(). Before anything is served.
  void NoteRecovery(const ShardRecovery& recovery);

  // A snapshot was written, or failed, for status().
  void NoteSnapshot(bool written) { ++(written ? snapshots_ : snapshot_failures_); }

  // From now on all that changes the shard is written there first. Before anything is served.
  void StartJournal(ShardJournal* journal);

  ShardStatus status() const;

 private:
  // A gradient that was found good, and where it goes.
  struct CheckedGradient {
    SliceKey key;
    Slice* slice = nullptr;
    uint64_t version = 0;
    Gradient gradient;
  };
  // Values that were found good, as they are set.
  struct CheckedValues {
    Slice* slice = nullptr;
    ValueBuffer values;
    uint64_t checksum = 0;
  };
  // Places in the order in which each slice changes; none where nothing is written down.
  using ApplyOrder = std::vector<uint64_t>;

  void AwaitDurable(uint64_t position, std::function<void(absl::Status)> done);
  // Writes a record, as ShardJournal::Append; without a journal only `admit` is called, and the answer is 0.
  absl::StatusOr<uint64_t> Write(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind,
                                 absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order)
      ABSL_SHARED_LOCKS_REQUIRED(gate_);
  absl::Status closed() const;
  // The same failure, said of a worker.
  absl::Status OfWorker(const absl::Status& status, uint32_t worker) const;
  absl::Status CheckJobLocked(absl::string_view job) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckJobConfigLocked(const JobConfig& job) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Checks what the job's durability asks of this shard.
  absl::Status CheckDurability(const JobConfig& job) const;
  // Reads the checkpoint's state of what is added; nothing if there is no checkpoint.
  absl::StatusOr<Resumption> Load(const std::string& checkpoint, const JobConfig& job,
                                  const TensorCatalog::Addition& addition) const;
  // Makes what is added, the saved slices as they were; with no lock that another call takes.
  absl::Status MakeSlices(const JobConfig& job, std::vector<ShardState::SliceEntry> saved,
                          TensorCatalog::Addition& addition) const;
  // Opens the journal that the job's durability asks for; null if it needs none.
  absl::StatusOr<ShardJournal*> OpenJournal(const JobConfig& job) const;
  absl::Status WriteDeclaration(const JobConfig& job, absl::Span<const OwnedTensor> tensors,
                                const std::string& checkpoint) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);
  ShardState OutlineLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void AddLocked(const JobConfig& job, TensorCatalog::Addition addition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ResumeWindowsLocked(absl::Span<const internal::v1::WindowState> windows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::vector<Slice*>> FindAll(absl::string_view job, absl::Span<const SliceKey> keys) const;
  absl::StatusOr<std::vector<CheckedGradient>> CheckPush(absl::string_view job, const PushTicket& push,
                                                         absl::Span<const GradientView> gradients) const;
  absl::StatusOr<Gradient> CheckGradient(const PushTicket& push, const GradientView& view, const Slice& slice) const;
  absl::StatusOr<uint64_t> WritePush(const PushTicket& push, absl::Span<const GradientView> gradients,
                                     absl::Span<const CheckedGradient> checked, absl::FunctionRef<bool()> admit,
                                     ApplyOrder& order) ABSL_SHARED_LOCKS_REQUIRED(gate_);
  // Has slices that came back older than the push's step catch up with it; refuses the push where that cannot be.
  absl::Status CheckSteps(const PushTicket& push, absl::string_view job, absl::Span<const CheckedGradient> checked);
  // Waits that may go on are added to `released`.
  absl::StatusOr<PushOutcome> TakePush(const PushTicket& push, absl::Span<const GradientView> gradients,
                                       absl::Span<const CheckedGradient> checked, PushWindow& window,
                                       std::vector<WaitList::Ticket>& released);
  PushOutcome Apply(const PushTicket& push, absl::Span<const CheckedGradient> gradients, const ApplyOrder& order,
                    std::vector<WaitList::Ticket>& released);
  absl::StatusOr<std::vector<CheckedValues>> CheckValues(absl::string_view job,
                                                         absl::Span<const ValueView> values) const;
  absl::StatusOr<uint64_t> WriteValues(absl::Span<const ValueView> values, absl::Span<const size_t> fresh)
      ABSL_SHARED_LOCKS_REQUIRED(gate_);
  absl::StatusOr<SetOutcome> TakeValues(absl::Span<const ValueView> values, std::vector<CheckedValues> checked,
                                        std::vector<WaitList::Ticket>& released);
  absl::StatusOr<PushWindow*> WindowOf(uint32_t worker) const;
  // INVALID_ARGUMENT for more than a message's values.
  absl::Status CheckElements(absl::Span<Slice* const> slices) const;
  std::string ExplainWait(const PullWait& wait) const;

  const Options options_;
  const Clock* const clock_;
  const absl::Time started_;
  // Held while tensors are made, for a declaration waits for the one before it. No other call takes it.
  absl::Mutex declaring_ ABSL_ACQUIRED_BEFORE(gate_);
  // Held shared by whatever changes the shard, from its record to its end; alone by what must not see it in between.
  // Never held while a checkpoint is read or values are computed.
  mutable absl::Mutex gate_ ABSL_ACQUIRED_BEFORE(mutex_);
  // Changed under the gate; read without it by who only waits for a record that is written.
  std::atomic<ShardJournal*> journal_{nullptr};
  mutable absl::Mutex mutex_;
  JobConfig job_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  std::optional<ShardRecovery> recovery_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> may_have_lost_{false};
  std::atomic<uint64_t> lost_updates_{0}, snapshots_{0}, snapshot_failures_{0};
  TensorCatalog catalog_ ABSL_GUARDED_BY(mutex_);
  // Nothing is ever removed, so pointers to windows stay good.
  std::vector<std::unique_ptr<PushWindow>> windows_ ABSL_GUARDED_BY(mutex_);
  // Of the newest record.
  std::atomic<uint64_t> last_position_{0};
  std::atomic<uint64_t> pushes_{0}, pulls_{0}, updates_{0}, duplicates_{0}, dropped_{0}, max_staleness_{0};
  Histogram staleness_, wait_microseconds_;
  // Of the pulls that wait: of all who may push, and of those who may only look.
  ByteBudget worker_waits_, reader_waits_;
  // Last: its destruction ends the waits, whose callbacks use the rest.
  WaitList waits_;
};

}  // namespace ballast
