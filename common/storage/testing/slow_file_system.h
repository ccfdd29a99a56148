// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/storage/file_system.h"

namespace ballast {

// The machine's files on one disk that a test can slow down or block. Writes, syncs, renames and removals wait for it
// one by one; reading and listing run at full speed. Thread safety: all methods may be called from any thread.
class SlowFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> Reuse(const std::string& from, const std::string& to) override;
  absl::Status Truncate(const std::string& path, uint64_t size) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;

  // Limits appends to `bytes_per_second` from now on, and makes every other durable change take `operation`. 0 bytes
  // per second: the machine's full speed.
  void SlowDown(uint64_t bytes_per_second, absl::Duration operation);

  // Makes all disk operations wait from now on, until Release.
  void Block();
  void Release();
  // Waits until that many calls wait for the blocked disk.
  void AwaitBlocked(int calls);

  // Total time that the disk was busy.
  absl::Duration busy() const;

 private:
  class File;

  // Occupies the disk for the time of one operation.
  void Use(uint64_t bytes, bool lasting) ABSL_LOCKS_EXCLUDED(mutex_);

  FileSystem* const files_ = PosixFileSystem();
  mutable absl::Mutex mutex_;
  uint64_t bytes_per_second_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration operation_ ABSL_GUARDED_BY(mutex_);
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  // Time when the disk has finished all queued operations.
  absl::Time free_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration busy_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
