// SPDX-License-Identifier: Apache-2.0
#include "common/storage/testing/slow_file_system.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace ballast {

class SlowFileSystem::File : public AppendFile {
 public:
  File(std::unique_ptr<AppendFile> file, SlowFileSystem* system) : file_(std::move(file)), system_(system) {}

  absl::Status Append(absl::Span<const absl::string_view> parts) override {
    uint64_t bytes = 0;
    for (absl::string_view part : parts) bytes += part.size();
    system_->Use(bytes, /*lasting=*/false);
    return file_->Append(parts);
  }

  absl::Status Sync() override {
    system_->Use(0, /*lasting=*/true);
    return file_->Sync();
  }

  uint64_t size() const override { return file_->size(); }

 private:
  const std::unique_ptr<AppendFile> file_;
  SlowFileSystem* const system_;
};

void SlowFileSystem::SlowDown(uint64_t bytes_per_second, absl::Duration operation) {
  absl::MutexLock lock(&mutex_);
  bytes_per_second_ = bytes_per_second;
  operation_ = operation;
}

void SlowFileSystem::Block() {
  absl::MutexLock lock(&mutex_);
  blocked_ = true;
}

void SlowFileSystem::Release() {
  absl::MutexLock lock(&mutex_);
  blocked_ = false;
}

void SlowFileSystem::AwaitBlocked(int calls) {
  absl::MutexLock lock(&mutex_);
  const auto there = [this, calls] {
    mutex_.AssertReaderHeld();
    return waiting_ >= calls;
  };
  mutex_.Await(absl::Condition(&there));
}

absl::Duration SlowFileSystem::busy() const {
  absl::MutexLock lock(&mutex_);
  return busy_;
}

void SlowFileSystem::Use(uint64_t bytes, bool lasting) {
  absl::MutexLock lock(&mutex_);
  ++waiting_;
  const auto moves = [this] {
    mutex_.AssertReaderHeld();
    return !blocked_;
  };
  mutex_.Await(absl::Condition(&moves));
  --waiting_;
  absl::Duration time = lasting ? operation_ : absl::ZeroDuration();
  if (bytes_per_second_ > 0) time += absl::Seconds(static_cast<double>(bytes) / static_cast<double>(bytes_per_second_));
  if (time <= absl::ZeroDuration()) return;
  busy_ += time;
  const absl::Time done = free_at_ = std::max(free_at_, absl::Now()) + time;
  // Disk operations take real time; nothing ends them early.
  const auto never = [] { return false; };
  mutex_.AwaitWithDeadline(absl::Condition(&never), done);
}

absl::StatusOr<std::unique_ptr<AppendFile>> SlowFileSystem::Create(const std::string& path) {
  Use(0, /*lasting=*/true);
  absl::StatusOr<std::unique_ptr<AppendFile>> file = files_->Create(path);
  if (!file.ok()) return file;
  return std::make_unique<File>(*std::move(file), this);
}

absl::StatusOr<std::unique_ptr<AppendFile>> SlowFileSystem::Reuse(const std::string& from, const std::string& to) {
  Use(0, /*lasting=*/true);
  absl::StatusOr<std::unique_ptr<AppendFile>> file = files_->Reuse(from, to);
  if (!file.ok()) return file;
  return std::make_unique<File>(*std::move(file), this);
}

absl::Status SlowFileSystem::Truncate(const std::string& path, uint64_t size) {
  Use(0, /*lasting=*/true);
  return files_->Truncate(path, size);
}

absl::Status SlowFileSystem::Rename(const std::string& from, const std::string& to) {
  Use(0, /*lasting=*/true);
  return files_->Rename(from, to);
}

absl::Status SlowFileSystem::Remove(const std::string& path) {
  Use(0, /*lasting=*/true);
  return files_->Remove(path);
}

absl::Status SlowFileSystem::MakeFolder(const std::string& path) {
  Use(0, /*lasting=*/true);
  return files_->MakeFolder(path);
}

absl::StatusOr<std::vector<std::string>> SlowFileSystem::List(const std::string& folder) {
  return files_->List(folder);
}

}  // namespace ballast
