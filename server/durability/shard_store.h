// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/storage/file_system.h"
#include "common/storage/record_log.h"
#include "common/storage/shard_log.h"
#include "server/durability/group_commit.h"
#include "server/durability/shard_directory.h"
#include "server/durability/shard_snapshot.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_record.h"

namespace ballast {

// Owns the log of a shard's changes, and decides when it is synced, when it continues in a new file and when a snapshot
// replaces its start. Invariant: the newest snapshot and the log after it together equal the shard. Leaves the files of
// the state directory to ShardDirectory. Thread safety: all methods may be called from any thread, except Recover and
// Start, which must come first.
class ShardStore : public ShardJournal {
 public:
  struct Options {
    // Created if it does not exist.
    std::string folder;
    uint32_t shard = 0;
    // A snapshot is taken once the log after the last one reaches this length and the last one's size.
    uint64_t log_bytes = uint64_t{64} << 20;
    // A new log file is started at this length, and with each snapshot.
    uint64_t file_bytes = uint64_t{128} << 20;
    // Delay before the first retry of a failed snapshot; it doubles with each failure, up to `longest_retry`.
    absl::Duration first_retry = absl::Seconds(1);
    absl::Duration longest_retry = absl::Minutes(1);
    // Receives a log line when a snapshot failed, on another thread. May be empty.
    std::function<void(const std::string&)> log;
    // Called once if a disk failure means that nothing can be made durable any more.
    std::function<void(absl::Status)> on_failure;
  };

  struct Recovered {
    // False if the directory was empty.
    bool found = false;
    uint64_t snapshot_position = 0;
    // Log records that were applied, and those that were skipped because a live call would also have been refused.
    uint64_t records = 0;
    uint64_t refused_records = 0;
    uint64_t log_bytes = 0;
    // Bytes of an unfinished write that were cut off the log's end.
    uint64_t cut_bytes = 0;
    absl::Duration took;
  };

  struct Status {
    uint64_t log_bytes = 0;
    uint64_t position = 0;
    uint64_t synced = 0;
    uint64_t snapshot_failures = 0;
  };

  // `files` and `shard` must outlive this. FAILED_PRECONDITION if another process uses the directory.
  static absl::StatusOr<std::unique_ptr<ShardStore>> Open(Options options, FileSystem* files, ParameterShard* shard);
  ~ShardStore() override;

  // Restores the new shard from the directory and continues its log. DATA_LOSS if the directory is damaged,
  // FAILED_PRECONDITION if it belongs to another shard or has a newer format; then nothing in it is changed.
  absl::StatusOr<Recovered> Recover();

  // Starts the log in an empty directory, or returns the log that Recover continued; null if the job needs no log.
  absl::StatusOr<ShardJournal*> Start(const JobConfig& job);

  absl::StatusOr<uint64_t> Append(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind,
                                  absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order) override;
  void AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) override;
  void AwaitSynced(uint64_t position, std::function<void(absl::Status)> done) override;
  std::optional<LogStatus> log() const override;

  // Writes a snapshot while the shard keeps working, reads it back, and drops the log before it, which a failure
  // keeps.
  absl::Status TakeSnapshot();

  Status status() const;

 private:
  ShardStore(Options options, FileSystem* files, ParameterShard* shard, std::unique_ptr<ShardDirectory> directory)
      : options_(std::move(options)), files_(files), shard_(shard), directory_(std::move(directory)) {}

  // Returns the position of the first record after the snapshot.
  absl::StatusOr<uint64_t> LoadSnapshot(const std::string& path);
  absl::Status Replay(const LogRecord& record, Recovered& recovered);
  // Replays the log after the snapshot. Returns its end, after cutting off an unfinished write.
  absl::StatusOr<LogEnd> ReplayLogs(Recovered& recovered, uint64_t next);
  absl::Status BeginWriting(const JobConfig& job, const LogEnd& end);
  absl::Status SyncLog(RecordWriter& log);
  // Syncs and ends the file, and starts the next one.
  absl::Status RotateLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  // Like RotateLocked, but syncs most of the file before it takes the lock.
  absl::Status Rotate();
  // Publishes the length of the log; call it after each change of that.
  void NoteBytesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    log_bytes_.store(finished_bytes_ + log_->size(), std::memory_order_relaxed);
  }
  // Appends a record of the synced position to the log, unless a later record does so.
  void Mark(uint64_t synced);
  absl::Status WriteSnapshotOf(const ShardState& capture, uint64_t position);
  uint64_t SnapshotLengthLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  void LogFailure(const absl::Status& status, absl::Duration retry) const;

  const Options options_;
  FileSystem* const files_;
  ParameterShard* const shard_;
  const std::unique_ptr<ShardDirectory> directory_;
  // Used only before the shard serves.
  bool recovering_ = false;
  std::unique_ptr<GroupCommit> commit_;

  // Held while a record is written, because records are ordered, and while a new file replaces the current one.
  mutable absl::Mutex write_mutex_;
  // Shared with `commit_`, which may still have to sync a file that another one has replaced.
  std::shared_ptr<RecordWriter> log_ ABSL_GUARDED_BY(write_mutex_);
  // Why nothing may be written: a new file may exist that starts at this file's next position.
  absl::Status failed_ ABSL_GUARDED_BY(write_mutex_);
  // Bytes of finished files after the last snapshot.
  uint64_t finished_bytes_ ABSL_GUARDED_BY(write_mutex_) = 0;
  // finished_bytes_ and those of the current file: whoever asks must not wait for a write.
  std::atomic<uint64_t> log_bytes_{0};
  // Bytes of values in the last snapshot.
  uint64_t state_bytes_ ABSL_GUARDED_BY(write_mutex_) = 0;

  // Serializes snapshots.
  absl::Mutex snapshot_mutex_;
  mutable absl::Mutex newest_mutex_;
  // When the newest snapshot was complete, and how long this process took for it.
  absl::Time snapshot_ ABSL_GUARDED_BY(newest_mutex_) = absl::InfinitePast();
  absl::Duration snapshot_took_ ABSL_GUARDED_BY(newest_mutex_);
  std::unique_ptr<SnapshotThread> snapshot_thread_;
};

}  // namespace ballast
