// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tests/fault/tables/counting_worker.h"

namespace ballast {

// Owns workers that never die, one thread and client each, and the ledger of their acknowledged pushes. They work in
// shifts: between two, nothing is in flight. Knows nothing of the faults. Thread safety: Begin, End and the getters
// are confined to one thread; AwaitAcknowledgement may be called from any.
class CountingThreads {
 public:
  struct Counts {
    uint64_t pushes = 0;
    uint64_t retries = 0;
    uint64_t duplicates = 0;
  };

  // Connects workers 0 to `threads` - 1, every second one with shared memory.
  static absl::StatusOr<std::unique_ptr<CountingThreads>> Connect(const CountingWorkerOptions& options,
                                                                  uint32_t threads);
  // Calls End.
  ~CountingThreads();

  // Begins a shift.
  void Begin();
  // Returns the time of an acknowledgement at or after `since`; DEADLINE_EXCEEDED if there is none by `deadline`; the
  // first error of a worker. A `since` after `deadline` waits for an error only.
  absl::StatusOr<absl::Time> AwaitAcknowledgement(absl::Time since, absl::Time deadline);
  // No worker begins another push; waits until all are acknowledged, at most as long as the client's timeouts allow.
  // Returns the first error of a worker.
  absl::Status End();

  // Valid between shifts.
  RowLedger ledger() const;
  Counts counts() const;
  // The rows that synchronous workers pulled after each step.
  LedgerReport pulled() const;

 private:
  struct Thread;

  CountingThreads() = default;
  bool MayBegin(uint64_t number);
  void OnAcknowledged();
  void OnEnd(const absl::Status& status);

  bool sync_ = false;
  std::vector<std::unique_ptr<Thread>> threads_;

  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = true;
  // One more than the highest number of a push that was begun: synchronous workers end with the same step.
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
