// SPDX-License-Identifier: Apache-2.0
#include "common/storage/testing/lossy_file_system.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace ballast {

class LossyFileSystem::File : public AppendFile {
 public:
  // `sizes` is shared with the file system, which outlives the file but may rename it.
  File(std::unique_ptr<AppendFile> file, LossyFileSystem* system, std::shared_ptr<Sizes> sizes)
      : file_(std::move(file)), system_(system), sizes_(std::move(sizes)) {}

  absl::Status Append(absl::Span<const absl::string_view> parts) override {
    uint64_t bytes = 0;
    for (absl::string_view part : parts) bytes += part.size();
    absl::MutexLock lock(&system_->mutex_);
    // Else a record of later could be there that says an earlier one was synced, which it was not.
    if (system_->dead_) return absl::OkStatus();
    if (bytes > system_->free_) return absl::ResourceExhaustedError("No space left on device");
    if (absl::Status status = file_->Append(parts); !status.ok()) return status;
    system_->free_ -= bytes;
    sizes_->written += bytes;
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    absl::MutexLock lock(&system_->mutex_);
    if (system_->fail_syncs_) return absl::InternalError("Input/output error");
    ++system_->syncs_;
    if (system_->dead_) return absl::OkStatus();
    sizes_->synced = sizes_->written;
    return absl::OkStatus();
  }

  uint64_t size() const override { return file_->size(); }

 private:
  const std::unique_ptr<AppendFile> file_;
  LossyFileSystem* const system_;
  const std::shared_ptr<Sizes> sizes_;
};

absl::StatusOr<std::unique_ptr<AppendFile>> LossyFileSystem::Create(const std::string& path) {
  absl::StatusOr<std::unique_ptr<AppendFile>> file = files_->Create(path);
  if (!file.ok()) return file.status();
  auto sizes = std::make_shared<Sizes>();
  absl::MutexLock lock(&mutex_);
  sizes_[path] = sizes;
  return std::make_unique<File>(*std::move(file), this, std::move(sizes));
}

absl::Status LossyFileSystem::Truncate(const std::string& path, uint64_t size) {
  absl::MutexLock lock(&mutex_);
  if (const auto sizes = sizes_.find(path); sizes != sizes_.end()) {
    sizes->second->written = sizes->second->synced = size;
  }
  return files_->Truncate(path, size);
}

absl::Status LossyFileSystem::Rename(const std::string& from, const std::string& to) {
  absl::MutexLock lock(&mutex_);
  if (dead_) return absl::OkStatus();
  if (absl::Status status = files_->Rename(from, to); !status.ok()) return status;
  if (auto moved = sizes_.extract(from); !moved.empty()) sizes_[to] = std::move(moved.mapped());
  return absl::OkStatus();
}

absl::Status LossyFileSystem::Remove(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  if (dead_) return absl::OkStatus();
  sizes_.erase(path);
  return files_->Remove(path);
}

absl::Status LossyFileSystem::MakeFolder(const std::string& path) { return files_->MakeFolder(path); }

absl::StatusOr<std::vector<std::string>> LossyFileSystem::List(const std::string& folder) {
  return files_->List(folder);
}

absl::Status LossyFileSystem::LoseUnsynced(uint64_t seed) {
  std::mt19937_64 random(seed);
  absl::MutexLock lock(&mutex_);
  for (const auto& [path, sizes] : sizes_) {
    const uint64_t unsynced = sizes->written - sizes->synced;
    if (unsynced == 0) continue;
    const uint64_t kept = random() % (unsynced + 1);
    const uint64_t zeros = random() % (unsynced - kept + 1);
    const uint64_t cut = sizes->synced + kept;
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, path);
    const absl::Cleanup close_fd = [fd] { close(fd); };
    // What lies between the two sizes reads as zeros.
    if (ftruncate(fd, cut) != 0 || ftruncate(fd, cut + zeros) != 0) return absl::ErrnoToStatus(errno, path);
  }
  sizes_.clear();
  return absl::OkStatus();
}

void LossyFileSystem::SetFree(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  free_ = bytes;
}

void LossyFileSystem::LoseUnsyncedFromNowOn() {
  absl::MutexLock lock(&mutex_);
  dead_ = true;
}

void LossyFileSystem::FailSyncs(bool fail) {
  absl::MutexLock lock(&mutex_);
  fail_syncs_ = fail;
}

uint64_t LossyFileSystem::syncs() const {
  absl::MutexLock lock(&mutex_);
  return syncs_;
}

}  // namespace ballast
