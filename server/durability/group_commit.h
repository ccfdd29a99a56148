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
#include "common/storage/record_log.h"

namespace ballast {

// Syncs a log's files from a thread of its own: many records at once, and calls back whoever waits for one of them.
// Knows nothing of what is in a record. Thread safety: all methods may be called from any thread.
class GroupCommit {
 public:
  struct Options {
    // Those that wait wait for their record to be synced. Else only where a record has been unsynced for `patience`.
    bool wait_for_sync = false;
    // Position of the last record that was on the disk before.
    uint64_t synced = 0;
    // Without waits: how long after a record was written it is synced.
    absl::Duration interval = absl::Milliseconds(300);
    absl::Duration patience = absl::Milliseconds(800);
    // Called from the thread that syncs with the position that is on the disk now; may be empty.
    std::function<void(uint64_t position)> on_synced = {};
  };
  using Done = std::function<void(absl::Status)>;

  // `on_failure` is called once, when a sync has failed; nothing is synced from then on.
  GroupCommit(Options options, std::function<void(absl::Status)> on_failure);
  // Syncs what was written; who waits still hears of it.
  ~GroupCommit();
  GroupCommit(const GroupCommit&) = delete;

  // The record was written to that file; positions ascend.
  void OnWritten(uint64_t position, std::shared_ptr<RecordWriter> file);

  // Calls `done` once; may call it before returning.
  void Await(uint64_t position, Done done);

  // Calls `done` once, when the record is on the disk, however long others may wait; may call it before returning.
  void AwaitSynced(uint64_t position, Done done);

  // From now on until the next file is written to, syncs again as soon as a sync has ended: a file is about to be
  // finished, and whoever finishes it will wait for what is not synced by then.
  void Hurry();

  // A sync elsewhere has failed: as if one here had.
  void Fail(absl::Status status);

  // All records up to it are on the disk.
  uint64_t synced() const;

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
  // Told by Fail, and not taken up yet.
  absl::Status failed_elsewhere_ ABSL_GUARDED_BY(mutex_);
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_ ABSL_GUARDED_BY(mutex_) = 0;
  // When the first record was written that is not synced.
  absl::Time unsynced_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // Files with such records, the newest last.
  std::vector<std::shared_ptr<RecordWriter>> files_ ABSL_GUARDED_BY(mutex_);
  std::multimap<uint64_t, Done> waiting_ ABSL_GUARDED_BY(mutex_);
  absl::CondVar changed_;
  std::thread thread_;
};

}  // namespace ballast
