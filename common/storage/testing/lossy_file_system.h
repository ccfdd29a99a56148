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

// This machine's files, of which LoseUnsynced takes what a machine's death may take: all that was appended since a
// file's last Sync, or a part of it. Disks can be made full, or fail to sync.
// Thread safety: all methods may be called from any thread.
class LossyFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> Reuse(const std::string& from, const std::string& to) override;
  absl::Status Truncate(const std::string& path, uint64_t size) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;

  // To be called when nobody writes any more. Each file keeps its synced part; of the rest a share that `seed` draws is
  // kept, a share is filled with zeros (a page that was never written), and a share is cut off. Of a file that is
  // reused each page of the rest is the new or the old one.
  absl::Status LoseUnsynced(uint64_t seed);

  // What is written, synced, renamed or removed from now on is not: the machine is dead, though the process does not
  // know it yet.
  void LoseUnsyncedFromNowOn();

  // From now on so many bytes fit, in all files together; then RESOURCE_EXHAUSTED.
  void SetFree(uint64_t bytes);
  // From now on syncs answer that and do nothing; OK: those of other files work again.
  void FailSyncsWith(absl::Status status);
  void FailSyncs(bool fail);
  // From now on no file can be renamed.
  void FailRenames();
  // From now on LoseUnsynced brings back what was removed, unless a file was created or renamed after it: that syncs
  // the folder.
  void ForgetRemovals();
  // From now on a bit of whatever is appended to files with `part` in their path is wrong on the disk; empty: of none.
  void CorruptFilesWith(std::string part);

  uint64_t syncs() const;
  // Waits until there were that many, but not longer than `timeout`; false then.
  bool AwaitSyncs(uint64_t count, absl::Duration timeout) const;
  uint64_t reuses() const;

 private:
  class File;
  struct Sizes {
    uint64_t written = 0;
    uint64_t synced = 0;
    // What the file had before, as far as the disk still has it.
    std::string old = {};
    std::string created_as = {};
  };
  // What a death leaves of it.
  static absl::Status Lose(const std::string& path, const Sizes& sizes, std::mt19937_64& random);

  FileSystem* const files_ = PosixFileSystem();
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Sizes>> sizes_ ABSL_GUARDED_BY(mutex_);
  uint64_t free_ ABSL_GUARDED_BY(mutex_) = ~uint64_t{0};
  bool dead_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status fail_syncs_ ABSL_GUARDED_BY(mutex_);
  bool fail_renames_ ABSL_GUARDED_BY(mutex_) = false;
  bool forget_removals_ ABSL_GUARDED_BY(mutex_) = false;
  // What was in the files whose removal may not last.
  std::map<std::string, std::string> removed_ ABSL_GUARDED_BY(mutex_);
  std::string corrupt_ ABSL_GUARDED_BY(mutex_);
  uint64_t syncs_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t reuses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ballast
