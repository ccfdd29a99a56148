// SPDX-License-Identifier: Apache-2.0
#include "common/storage/testing/lossy_file_system.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

std::string Contents(const std::string& path) {
  std::ostringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  return contents.str();
}

}  // namespace

class LossyFileSystem::File : public AppendFile {
 public:
  // `sizes` is shared with the file system, which outlives the file but may rename it.
  File(std::unique_ptr<AppendFile> file, LossyFileSystem* system, std::shared_ptr<Sizes> sizes)
      : file_(std::move(file)), system_(system), sizes_(std::move(sizes)) {}

  absl::Status Append(absl::Span<const absl::string_view> parts) override {
    uint64_t bytes = 0;
    for (absl::string_view part : parts) bytes += part.size();
    absl::MutexLock lock(&system_->mutex_);
    // Otherwise a later record could survive that claims an earlier one was synced, although it was not.
    if (system_->dead_) return absl::OkStatus();
    if (bytes > system_->free_) return absl::ResourceExhaustedError("No space left on device");
    if (absl::Status status = Write(parts); !status.ok()) return status;
    system_->free_ -= bytes;
    sizes_->written += bytes;
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    absl::MutexLock lock(&system_->mutex_);
    sync_failed_.Update(system_->fail_syncs_);
    if (!sync_failed_.ok()) return sync_failed_;
    ++system_->syncs_;
    if (system_->dead_) return absl::OkStatus();
    sizes_->synced = sizes_->written;
    return absl::OkStatus();
  }

  uint64_t size() const override {
    absl::MutexLock lock(&system_->mutex_);
    return sizes_->written;
  }

 private:
  absl::Status Write(absl::Span<const absl::string_view> parts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(system_->mutex_) {
    if (system_->corrupt_.empty() || !absl::StrContains(sizes_->created_as, system_->corrupt_)) {
      return file_->Append(parts);
    }
    std::string all;
    for (absl::string_view part : parts) all.append(part.data(), part.size());
    all[all.size() / 2] ^= 1;
    return file_->Append({all});
  }

  // Null if the machine was dead when the file was opened.
  const std::unique_ptr<AppendFile> file_;
  LossyFileSystem* const system_;
  const std::shared_ptr<Sizes> sizes_;
  absl::Status sync_failed_ ABSL_GUARDED_BY(system_->mutex_);
};

absl::StatusOr<std::unique_ptr<AppendFile>> LossyFileSystem::Create(const std::string& path) {
  auto sizes = std::make_shared<Sizes>();
  sizes->created_as = path;
  absl::MutexLock lock(&mutex_);
  if (dead_) return std::make_unique<File>(nullptr, this, std::move(sizes));
  absl::StatusOr<std::unique_ptr<AppendFile>> file = files_->Create(path);
  if (!file.ok()) return file.status();
  removed_.clear();
  sizes_[path] = sizes;
  return std::make_unique<File>(*std::move(file), this, std::move(sizes));
}

absl::StatusOr<std::unique_ptr<AppendFile>> LossyFileSystem::Reuse(const std::string& from, const std::string& to) {
  auto sizes = std::make_shared<Sizes>();
  absl::MutexLock lock(&mutex_);
  if (dead_) return std::make_unique<File>(nullptr, this, std::move(sizes));
  sizes->old = Contents(from);
  absl::StatusOr<std::unique_ptr<AppendFile>> file = files_->Reuse(from, to);
  if (!file.ok()) return file.status();
  removed_.clear();
  ++reuses_;
  // The disk may lack unsynced parts of the old content, but nothing reads those.
  sizes_.erase(from);
  sizes_[to] = sizes;
  return std::make_unique<File>(*std::move(file), this, std::move(sizes));
}

absl::Status LossyFileSystem::Truncate(const std::string& path, uint64_t size) {
  absl::MutexLock lock(&mutex_);
  if (dead_) return absl::OkStatus();
  if (const auto sizes = sizes_.find(path); sizes != sizes_.end()) {
    *sizes->second = {size, size};
  }
  return files_->Truncate(path, size);
}

absl::Status LossyFileSystem::Rename(const std::string& from, const std::string& to) {
  absl::MutexLock lock(&mutex_);
  if (dead_) return absl::OkStatus();
  if (fail_renames_) return absl::InternalError("Input/output error");
  if (absl::Status status = files_->Rename(from, to); !status.ok()) return status;
  removed_.clear();
  if (auto moved = sizes_.extract(from); !moved.empty()) sizes_[to] = std::move(moved.mapped());
  return absl::OkStatus();
}

absl::Status LossyFileSystem::Remove(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  if (dead_) return absl::OkStatus();
  sizes_.erase(path);
  if (forget_removals_ && std::ifstream(path).good()) removed_[path] = Contents(path);
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
    if (sizes->written == sizes->synced) continue;
    if (absl::Status status = Lose(path, *sizes, random); !status.ok()) return status;
  }
  sizes_.clear();
  for (const auto& [path, contents] : removed_) std::ofstream(path, std::ios::binary) << contents;
  removed_.clear();
  return absl::OkStatus();
}

absl::Status LossyFileSystem::Lose(const std::string& path, const Sizes& sizes, std::mt19937_64& random) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  // Small pages, so that small records span several.
  constexpr uint64_t kPage = 64;
  for (uint64_t at = sizes.synced; at < sizes.old.size(); at = (at / kPage + 1) * kPage) {
    const uint64_t bytes = std::min<uint64_t>((at / kPage + 1) * kPage, sizes.old.size()) - at;
    if (random() % 2 == 0) continue;
    if (pwrite(fd, sizes.old.data() + at, bytes, at) != static_cast<ssize_t>(bytes)) {
      return absl::ErrnoToStatus(errno, path);
    }
  }
  // Only the grown part is cut.
  const uint64_t lasts = std::max<uint64_t>(sizes.synced, sizes.old.size());
  if (sizes.written <= lasts) return absl::OkStatus();
  const uint64_t unsynced = sizes.written - lasts;
  const uint64_t kept = random() % (unsynced + 1);
  const uint64_t zeros = random() % (unsynced - kept + 1);
  const uint64_t cut = lasts + kept;
  // Bytes between the two sizes read as zeros.
  if (ftruncate(fd, cut) != 0 || ftruncate(fd, cut + zeros) != 0) return absl::ErrnoToStatus(errno, path);
  return absl::OkStatus();
}

void LossyFileSystem::SetFree(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  free_ = bytes;
}

void LossyFileSystem::CorruptFilesWith(std::string part) {
  absl::MutexLock lock(&mutex_);
  corrupt_ = std::move(part);
}

void LossyFileSystem::LoseUnsyncedFromNowOn() {
  absl::MutexLock lock(&mutex_);
  dead_ = true;
}

void LossyFileSystem::FailRenames() {
  absl::MutexLock lock(&mutex_);
  fail_renames_ = true;
}

void LossyFileSystem::ForgetRemovals() {
  absl::MutexLock lock(&mutex_);
  forget_removals_ = true;
}

void LossyFileSystem::FailSyncsWith(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  fail_syncs_ = std::move(status);
}

void LossyFileSystem::FailSyncs(bool fail) {
  FailSyncsWith(fail ? absl::InternalError("Input/output error") : absl::OkStatus());
}

uint64_t LossyFileSystem::syncs() const {
  absl::MutexLock lock(&mutex_);
  return syncs_;
}

bool LossyFileSystem::AwaitSyncs(uint64_t count, absl::Duration timeout) const {
  absl::MutexLock lock(&mutex_);
  const auto there = [this, count] {
    mutex_.AssertReaderHeld();
    return syncs_ >= count;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&there), timeout);
}

uint64_t LossyFileSystem::reuses() const {
  absl::MutexLock lock(&mutex_);
  return reuses_;
}

}  // namespace ballast
