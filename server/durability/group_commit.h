// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/metrics/histogram.h"
#include "common/storage/record_log.h"

namespace ballast {

// Owns a thread that syncs a log's files, many records at once, and then calls the waits for those records.
// Deliberately does not know what a record contains. Thread safety: all methods may be called from any thread.
class GroupCommit {
 public:
  struct Options {
    // True if Await always waits for the sync. Otherwise it waits only if a record is unsynced for max_unsynced_age.
    bool wait_for_sync = false;
    // Position of the last record that is already on the disk.
    uint64_t synced = 0;
    // If nobody waits, a record is synced this long after it was written.
    absl::Duration interval = absl::Milliseconds(300);
    absl::Duration max_unsynced_age = absl::Milliseconds(800);
    // Called from the syncing thread with the newest position on the disk; may be empty.
    std::function<void(uint64_t position)> on_synced = {};
  };
  using Done = std::function<void(absl::Status)>;

  // Calls `on_failure` once when a sync has failed; nothing is synced after that.
  GroupCommit(Options options, std::function<void(absl::Status)> on_failure);
  // Syncs all written records and calls all waits.
  ~GroupCommit();
  GroupCommit(const GroupCommit&) = delete;

  // Reports that the record, of that many bytes, was written to `file`. Positions ascend.
  void OnWritten(uint64_t position, uint64_t bytes, std::shared_ptr<RecordWriter> file);

  // Calls `done` once, possibly before returning. UNAVAILABLE if a sync failed.
  void Await(uint64_t position, Done done);

  // Calls `done` once the record is on the disk, even if `wait_for_sync` is false; possibly before returning.
  void AwaitSynced(uint64_t position, Done done);

  // Starts each sync right after the one before, until the next file is written to. Keeps a nearly full file's last
  // sync short.
  void SyncContinuously();

  // Reports that a sync elsewhere failed; has the effect of a failed sync here.
  void Fail(absl::Status status);

  // Position up to which all records are on the disk.
  uint64_t synced() const;
  // Bytes of the records after that.
  uint64_t unsynced_bytes() const;

  // Syncs a file on the caller's thread; measured like all others.
  absl::Status Sync(RecordWriter& file);
  // Time of each sync of a file that succeeded, in microseconds.
  v1::Histogram sync_microseconds() const { return sync_microseconds_.ToProto(); }

 private:
  void Run();
  bool MustSyncLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Time DueLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status SyncFiles(const std::vector<std::shared_ptr<RecordWriter>>& files);

  const Options options_;
  const std::function<void(absl::Status)> on_failure_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool hurried_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  // The failure passed to Fail, until the thread handles it.
  absl::Status failed_elsewhere_ ABSL_GUARDED_BY(mutex_);
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t unsynced_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // When the first unsynced record was written.
  absl::Time unsynced_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // Files with unsynced records, the newest last.
  std::vector<std::shared_ptr<RecordWriter>> files_ ABSL_GUARDED_BY(mutex_);
  std::multimap<uint64_t, Done> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::CondVar changed_;
  Histogram sync_microseconds_;
  std::thread thread_;
};

}  // namespace ballast
