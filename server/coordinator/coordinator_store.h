// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/concurrency/clock.h"
#include "common/storage/record_log.h"
#include "server/coordinator/coordinator_journal.h"

namespace ballast {

// Owns the directory with a coordinator's state: logs whose records are whole states, of which the last one counts.
// After each synced state an empty record marks it as synced; without the mark, damage to that state would look like
// the effect of a crash. Each process begins a new log, and so does a full log; older logs are removed once the new
// one holds a state. A thread syncs a state that no later one follows.
// Invariant: there is always a log with the newest state for which Save returned OK. Does not know what a state
// contains. Thread safety: all methods may be called from any thread.
class CoordinatorStore : public CoordinatorJournal {
 public:
  // Size after which a log is full.
  static constexpr uint64_t kLogBytes = uint64_t{16} << 20;
  // Interval between syncs of states saved without `sync`; a machine crash loses at most twice this time.
  static constexpr absl::Duration kSyncInterval = absl::Seconds(1);

  // Creates the directory if needed. DATA_LOSS if a log in it is damaged. `files` and `clock` must outlive the store.
  static absl::StatusOr<std::unique_ptr<CoordinatorStore>> Open(FileSystem* files, std::string folder,
                                                                const Clock* clock);

  // The state in the directory when it was opened; empty if there was none.
  const std::string& recovered() const { return recovered_; }

  ~CoordinatorStore() override;

  absl::Status Save(absl::string_view state, bool sync) override;
  void Settle() override;

 private:
  CoordinatorStore(FileSystem* files, std::string folder, const Clock* clock)
      : files_(files), folder_(std::move(folder)), clock_(clock) {}
  absl::Status Recover();
  void SettleUntilStopped();
  bool UnsyncedLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return log_ != nullptr && synced_ < last_; }
  bool DueLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || UnsyncedLocked(); }
  void SettleLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On an error, abandons the log.
  absl::Status SyncLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MarkLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Closes a log whose contents are unknown after an error.
  void AbandonLogLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins the next log; removes the others once the state is in it.
  absl::Status SaveInNewLogLocked(absl::string_view state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FileSystem* const files_;
  const std::string folder_;
  const Clock* const clock_;
  // Constant after Open.
  std::string recovered_;
  // Held during disk writes: states are saved and synced one at a time.
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Null until a state is saved, and after a failed write that left unknown contents.
  std::unique_ptr<RecordWriter> log_ ABSL_GUARDED_BY(mutex_);
  // Positions of the next record, of the last state, and of the last synced record.
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time synced_at_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ballast
