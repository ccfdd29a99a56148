// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/storage/file_system.h"

namespace ballast {

// The machine's files, with simulated crashes: LoseUnsynced removes some or all of the bytes appended since a file's
// last Sync, as a crash of the machine may. Disks can be made full, or fail to sync. Thread safety: all methods may
// be called from any thread.
class LossyFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> Reuse(const std::string& from, const std::string& to) override;
  absl::Status Truncate(const std::string& path, uint64_t size) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;

  // Call when no writer is left. Each file keeps its synced part; of the rest, `seed` determines how much is kept,
  // filled with zeros (a page that was never written) or cut off. In a reused file each page of the rest is the new
  // or the old one.
  absl::Status LoseUnsynced(uint64_t seed);

  // Drops all writes, syncs, renames and removals from now on: the machine has crashed, unknown to the process.
  void LoseUnsyncedFromNowOn();

  // Limits the bytes that fit from now on, in all files together; then RESOURCE_EXHAUSTED.
  void SetFree(uint64_t bytes);
  // Makes syncs return `status` from now on and do nothing; with OK, syncs of files that have not failed work again.
  void FailSyncsWith(absl::Status status);
  void FailSyncs(bool fail);
  // Makes renames fail from now on.
  void FailRenames();
  // Makes LoseUnsynced restore files removed from now on, unless a file was created or renamed afterwards, which
  // syncs the directory.
  void ForgetRemovals();
  // Flips a bit in all data appended from now on to files with `part` in their path; empty: none.
  void CorruptFilesWith(std::string part);

  uint64_t syncs() const;
  // Waits until there were `count` syncs; returns false after `timeout`.
  bool AwaitSyncs(uint64_t count, absl::Duration timeout) const;
  uint64_t reuses() const;

 private:
  class File;
  struct Sizes {
    uint64_t written = 0;
    uint64_t synced = 0;
    // Previous content of a reused file, as far as the disk still has it.
    std::string old = {};
    std::string created_as = {};
  };
  // Applies a crash to one file.
  static absl::Status Lose(const std::string& path, const Sizes& sizes, std::mt19937_64& random);

  FileSystem* const files_ = PosixFileSystem();
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Sizes>> sizes_ ABSL_GUARDED_BY(mutex_);
  uint64_t free_ ABSL_GUARDED_BY(mutex_) = ~uint64_t{0};
  bool dead_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status fail_syncs_ ABSL_GUARDED_BY(mutex_);
  bool fail_renames_ ABSL_GUARDED_BY(mutex_) = false;
  bool forget_removals_ ABSL_GUARDED_BY(mutex_) = false;
  // Contents of removed files whose removal may not survive a crash.
  std::map<std::string, std::string> removed_ ABSL_GUARDED_BY(mutex_);
  std::string corrupt_ ABSL_GUARDED_BY(mutex_);
  uint64_t syncs_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t reuses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ballast
