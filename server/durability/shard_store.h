// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/storage/file_system.h"
#include "common/storage/record_log.h"
#include "common/storage/shard_log.h"
#include "server/durability/group_commit.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_journal.h"

namespace ballast {

// A shard's folder: the log of what changed it, and snapshots that stand for the log's beginning. One process uses a
// folder at a time. Invariant: newest snapshot and the log behind it together are the shard.
// Thread safety: all methods may be called from any thread, but Recover and Start, which come first.
class ShardStore : public ShardJournal {
 public:
  struct Options {
    // Made where there is none.
    std::string folder;
    uint32_t shard = 0;
    // A snapshot is taken once the log behind the last one is so long, and longer than the last one.
    uint64_t log_bytes = uint64_t{64} << 20;
    // The log's files are begun anew at that length, and with each snapshot.
    uint64_t file_bytes = uint64_t{128} << 20;
    // A snapshot that failed is tried again after the first, then after twice that, up to the longest.
    absl::Duration first_retry = absl::Seconds(1);
    absl::Duration longest_retry = absl::Minutes(1);
    // Gets a line for people when a snapshot failed; from another thread. May be empty.
    std::function<void(const std::string&)> log;
    // Called once where the disk fails so that nothing can be promised any more.
    std::function<void(absl::Status)> on_failure;
  };

  // What a recovery found.
  struct Recovered {
    // False where the folder was empty.
    bool found = false;
    uint64_t snapshot_position = 0;
    // Of the log: those that were applied, and those that were not because a live call would have been refused, too.
    uint64_t records = 0;
    uint64_t refused_records = 0;
    uint64_t log_bytes = 0;
    // Bytes of the log that a crash had left unfinished, and were cut off.
    uint64_t cut_bytes = 0;
    absl::Duration took;
  };

  struct Status {
    uint64_t log_bytes = 0;
    uint64_t position = 0;
    uint64_t synced = 0;
    uint64_t snapshots = 0;
    uint64_t snapshot_failures = 0;
  };

  // Files and shard must outlive it. FAILED_PRECONDITION where another process uses the folder.
  static absl::StatusOr<std::unique_ptr<ShardStore>> Open(Options options, FileSystem* files, ParameterShard* shard);
  ~ShardStore() override;

  // Makes the shard, which is new, what the folder says, and goes on writing there. DATA_LOSS where the folder is
  // damaged, FAILED_PRECONDITION where it is another shard's or of a newer format: nothing in it is changed then.
  absl::StatusOr<Recovered> Recover();

  // Begins an empty folder, for a job that wants it; null where it needs no log. What Recover found goes on by itself.
  absl::StatusOr<ShardJournal*> Start(const JobConfig& job);

  absl::StatusOr<uint64_t> Append(const internal::v1::ShardRecord& record, absl::Span<const absl::string_view> behind,
                                  absl::FunctionRef<bool()> admit, absl::FunctionRef<void()> in_order) override;
  void AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) override;
  void AwaitSynced(uint64_t position, std::function<void(absl::Status)> done) override;

  // Writes the shard as it is now, while it goes on, reads that back, and drops the log up to there. Where it fails the
  // log stays.
  absl::Status TakeSnapshot();

  Status status() const;

 private:
  ShardStore(Options options, FileSystem* files, ParameterShard* shard, int lock)
      : options_(std::move(options)), files_(files), shard_(shard), lock_(lock) {}

  absl::Status RemovePartial();
  absl::StatusOr<uint64_t> LoadSnapshot(uint64_t position);
  absl::Status Replay(const LogRecord& record, Recovered& recovered);
  // Answers where the log ends, once what a crash left behind that is gone.
  absl::StatusOr<LogEnd> ReplayLogs(Recovered& recovered, uint64_t next);
  absl::Status BeginWriting(const JobConfig& job, const LogEnd& end);
  // In the place of a file that a snapshot stands for, if there is one: its memory and blocks need not be found again.
  // DATA_LOSS if the file may be there all the same.
  absl::StatusOr<std::shared_ptr<RecordWriter>> CreateLog(
      const std::string& job, uint64_t first, const std::optional<internal::v1::LogHeader::Previous>& previous,
      std::optional<uint64_t> spare);
  // Takes away a file that could not be begun, so that it is gone after the machine's death, too. DATA_LOSS, with
  // `reason`, if it cannot; `reason` otherwise.
  absl::Status DropLog(const std::string& path, const absl::Status& reason);
  absl::StatusOr<std::unique_ptr<RecordWriter>> OpenLog(uint64_t first, std::optional<uint64_t> spare);
  absl::Status SyncLog(RecordWriter& log);
  // Ends the file, which is on the disk from then on, and begins the next.
  absl::Status RotateLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  // The same with most of it on the disk before the lock is taken.
  absl::Status Rotate();
  // Says in the log what is on the disk, if nothing follows that will.
  void Mark(uint64_t synced);
  absl::Status WriteSnapshotOf(const ShardState& capture, uint64_t position);
  absl::Status Prune(uint64_t position);
  // Of the log's files before the one that the record behind `position` is in, or will be; answers the first of that.
  uint64_t KeepSparesLocked(uint64_t position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  uint64_t SnapshotLengthLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  void SnapshotUntilStopped();
  // False once it is to stop.
  bool AwaitSnapshotDue();
  void NoteFailure(const absl::Status& status, absl::Duration retry);

  const Options options_;
  FileSystem* const files_;
  ParameterShard* const shard_;
  // A file descriptor whose lock says that the folder is ours.
  const int lock_;
  // Before anything is served.
  bool recovering_ = false;
  std::unique_ptr<GroupCommit> commit_;

  // Held while a record is written, for records have an order, and while one file gives way to the next.
  mutable absl::Mutex write_mutex_;
  std::shared_ptr<RecordWriter> log_ ABSL_GUARDED_BY(write_mutex_);
  std::string job_ ABSL_GUARDED_BY(write_mutex_);
  // Why nothing may be written any more: a new file may be there that begins where this one would go on.
  absl::Status failed_ ABSL_GUARDED_BY(write_mutex_);
  // Of finished files behind the last snapshot.
  uint64_t finished_bytes_ ABSL_GUARDED_BY(write_mutex_) = 0;
  // Values in the last snapshot.
  uint64_t state_bytes_ ABSL_GUARDED_BY(write_mutex_) = 0;
  // By their first records: the files that this process wrote, and those of them that a snapshot stands for and that
  // wait to be written anew. Positions only ascend here, so nothing in a spare can be taken for a record of later.
  std::vector<uint64_t> logs_ ABSL_GUARDED_BY(write_mutex_);
  std::vector<uint64_t> spares_ ABSL_GUARDED_BY(write_mutex_);
  uint64_t snapshots_ ABSL_GUARDED_BY(write_mutex_) = 0;
  uint64_t snapshot_failures_ ABSL_GUARDED_BY(write_mutex_) = 0;

  // One snapshot at a time.
  absl::Mutex snapshot_mutex_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool snapshot_due_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread snapshots_thread_;
};

}  // namespace ballast
