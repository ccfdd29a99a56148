// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
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
#include "ballast/internal/v1/storage.pb.h"
#include "common/storage/file_system.h"
#include "common/storage/record_log.h"
#include "common/storage/shard_log.h"

namespace ballast {

// Owns the files of a shard's state directory: log files, spares, snapshots, and the lock that keeps other processes
// out. Invariant: the newest snapshot and all log files after it are there. Deliberately does not know what the
// changes in a log mean, or when a file is synced or full. Thread safety: Prune may run concurrently with ContinueLog
// and AddSnapshot; all other calls come one at a time.
class ShardDirectory {
 public:
  // Creates the directory if it does not exist. `files` must outlive this. FAILED_PRECONDITION if another process uses
  // the directory.
  static absl::StatusOr<std::unique_ptr<ShardDirectory>> Open(std::string path, uint32_t shard, FileSystem* files);
  ~ShardDirectory();
  ShardDirectory(const ShardDirectory&) = delete;

  // Returns the path; nullopt if there is no snapshot.
  absl::StatusOr<std::optional<std::string>> NewestSnapshot() const;

  // Reads the log from record `from` on, as ReadShardLog does, and cuts an unfinished write off its end.
  absl::StatusOr<LogEnd> ReadLog(uint64_t from, absl::FunctionRef<absl::Status(const LogRecord& record)> take) const;

  // Removes files that an earlier process did not finish.
  absl::Status RemovePartial();

  // Starts this process's first log file, after what ReadLog returned.
  absl::StatusOr<std::unique_ptr<RecordWriter>> StartLog(const std::string& job, const LogEnd& end);

  // Starts the file after `finished`, the newest one, which must be synced. Reuses a spare if there is one, because its
  // memory and disk blocks are already allocated. DATA_LOSS if the new file may exist despite the failure; after any
  // other error, `finished` may still be appended to.
  absl::StatusOr<std::unique_ptr<RecordWriter>> ContinueLog(const RecordWriter& finished);

  // Adds the snapshot at that position, completely or not at all. `write` writes and syncs it at the path that it is
  // given, which is not its final one.
  absl::Status AddSnapshot(uint64_t position, absl::FunctionRef<absl::Status(const std::string& path)> write);

  // Removes the files that the snapshot at that position replaces, except at most `most_spares` log files.
  absl::Status Prune(uint64_t position, size_t most_spares);

 private:
  ShardDirectory(std::string path, uint32_t shard, FileSystem* files, int lock)
      : path_(std::move(path)), shard_(shard), files_(files), lock_(lock) {}

  absl::StatusOr<std::unique_ptr<RecordWriter>> OpenLog(uint64_t first, std::optional<uint64_t> spare);
  absl::StatusOr<std::unique_ptr<RecordWriter>> CreateLog(internal::v1::LogHeader header, uint64_t first,
                                                          std::optional<uint64_t> spare);
  // Durably removes a file that could not be started. Returns `reason`, as DATA_LOSS if the removal failed.
  absl::Status DropLog(const std::string& path, const absl::Status& reason);
  // Keeps some of the files before the one that contains, or will contain, the record after `position` as spares.
  // Returns the first position of that file.
  uint64_t KeepSparesLocked(uint64_t position, size_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const uint32_t shard_;
  FileSystem* const files_;
  // File descriptor whose lock marks the directory as ours.
  const int lock_;

  absl::Mutex mutex_;
  // Header of each file, except for its `previous`.
  internal::v1::LogHeader header_ ABSL_GUARDED_BY(mutex_);
  // First positions of this process's files: those still needed, and spares, which a snapshot replaced and which wait
  // to be reused. Positions only ascend here, so an old record in a spare cannot be mistaken for a later one.
  std::vector<uint64_t> logs_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> spares_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
