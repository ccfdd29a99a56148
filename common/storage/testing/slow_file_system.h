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

// This machine's files, on one disk that is as slow as a test wants, or that stands still. Whoever writes, syncs,
// renames or removes waits for the disk, one after another; reading and listing are as fast as ever. Thread safety: all
// methods may be called from any thread.
class SlowFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> Reuse(const std::string& from, const std::string& to) override;
  absl::Status Truncate(const std::string& path, uint64_t size) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;

  // From now on appending takes its time, and each other change that lasts takes `operation`. 0 bytes a second: as fast
  // as the machine's disk.
  void SlowDown(uint64_t bytes_per_second, absl::Duration operation);

  // The disk stands still: what is asked of it from now on waits until Release.
  void Block();
  void Release();
  // Waits until that many calls wait for a disk that stands still.
  void AwaitBlocked(int calls);

  // How long the disk was busy.
  absl::Duration busy() const;

 private:
  class File;

  // Takes the disk for that time.
  void Use(uint64_t bytes, bool lasting) ABSL_LOCKS_EXCLUDED(mutex_);

  FileSystem* const files_ = PosixFileSystem();
  mutable absl::Mutex mutex_;
  uint64_t bytes_per_second_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration operation_ ABSL_GUARDED_BY(mutex_);
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  // When the disk has done all that it was asked for.
  absl::Time free_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration busy_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
