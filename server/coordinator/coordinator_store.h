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

// A coordinator's state in a folder: logs of records, each a whole state, of which the last one counts. Behind a state
// that is on the disk an empty record says so: without it, damage to that state would look like a crash's work. A new
// log begins with each process and when the one before is long; those before it go once it holds a state. Invariant:
// there is always a log with the newest state that Save answered OK to. Does not know what is in a state. A thread
// of its own syncs a state that no later one follows.
// Thread safety: all methods may be called from any thread.
class CoordinatorStore : public CoordinatorJournal {
 public:
  // A log is not much longer.
  static constexpr uint64_t kLogBytes = uint64_t{16} << 20;
  // How long after the last sync a state that need not be synced is; what a machine's death may take is at most twice
  // that.
  static constexpr absl::Duration kSyncInterval = absl::Seconds(1);

  // Makes the folder where there is none. DATA_LOSS where a log in it is damaged. Both must outlive it.
  static absl::StatusOr<std::unique_ptr<CoordinatorStore>> Open(FileSystem* files, std::string folder,
                                                                const Clock* clock);

  // That the folder held when it was opened; empty where it held none.
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
  // After an error the log is abandoned.
  absl::Status SyncLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MarkLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After it nobody knows what the file holds.
  void AbandonLogLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins the next log and takes the others away once the state is in it.
  absl::Status SaveInNewLogLocked(absl::string_view state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FileSystem* const files_;
  const std::string folder_;
  const Clock* const clock_;
  // Constant once the folder is open.
  std::string recovered_;
  // Held while the disk is waited for: a state is saved, or one is synced, at a time.
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Null until something is saved, and after a write that failed so that nobody knows what is in the file.
  std::unique_ptr<RecordWriter> log_ ABSL_GUARDED_BY(mutex_);
  // Positions of the next record, of the last state, and of the last record that is on the disk.
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time synced_at_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ballast
