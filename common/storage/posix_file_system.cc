// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status/error_reason.h"
#include "common/storage/file_system.h"

namespace ballast {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kMinZeros = 8;

// EDQUOT also means a full disk.
absl::Status Errno(absl::string_view path) {
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    return WithReason(v1::ERROR_REASON_STORAGE_FAILED,
                      absl::ResourceExhaustedError(absl::StrCat(path, ": ", absl::ErrnoToStatus(errno, "").message())));
  }
  return absl::ErrnoToStatus(errno, path);
}

absl::Status SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Errno(folder);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  // Some file systems cannot sync a directory and return EINVAL.
  if (fsync(fd) != 0 && errno != EINVAL) return Errno(folder);
  return absl::OkStatus();
}

class PosixAppendFile : public AppendFile {
 public:
  // `old_size` is the length of the previous content, which appends overwrite.
  PosixAppendFile(int fd, std::string path, uint64_t old_size = 0)
      : fd_(fd), path_(std::move(path)), old_size_(old_size) {}
  ~PosixAppendFile() override { close(fd_); }

  absl::Status Append(absl::Span<const absl::string_view> parts) override {
    std::vector<iovec> rest;
    rest.reserve(parts.size());
    uint64_t bytes = 0;
    for (absl::string_view part : parts) {
      if (part.empty()) continue;
      rest.push_back({const_cast<char*>(part.data()), part.size()});
      bytes += part.size();
    }
    // Writing whole pages avoids reading them first.
    static constexpr char kZeros[kPageBytes + kMinZeros] = {};
    const uint64_t end = size_ + bytes;
    const uint64_t zeros = (end + kMinZeros + kPageBytes - 1) / kPageBytes * kPageBytes - end;
    if (end < old_size_) rest.push_back({const_cast<char*>(kZeros), std::min(zeros, old_size_ - end)});
    const absl::Status status = Write(rest);
    if (status.ok()) {
      size_ += bytes;
      return status;
    }
    // Leftovers of the failed append would look like damage once more is appended.
    old_size_ = 0;
    if (ftruncate(fd_, size_) != 0) {
      return absl::DataLossError(absl::StrCat(status.message(), "; truncating the file failed too"));
    }
    return status;
  }

  // The kernel reports a write-back error only once: of two syncs, concurrent or consecutive, the second would return
  // OK although data was lost. So syncs run one at a time, and all later ones return the first error.
  absl::Status Sync() override {
    absl::MutexLock lock(&sync_mutex_);
    if (sync_failed_.ok() && fdatasync(fd_) != 0) sync_failed_ = Errno(path_);
    return sync_failed_;
  }

  uint64_t size() const override { return size_; }

 private:
  absl::Status Write(std::vector<iovec>& parts) const {
    off_t offset = size_;
    for (size_t first = 0; first < parts.size();) {
      const int count = std::min<size_t>(parts.size() - first, IOV_MAX);
      const ssize_t got = pwritev(fd_, &parts[first], count, offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Errno(path_);
      offset += got;
      size_t written = got;
      while (first < parts.size() && written >= parts[first].iov_len) written -= parts[first++].iov_len;
      if (written > 0) {
        parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + written;
        parts[first].iov_len -= written;
      }
    }
    return absl::OkStatus();
  }

  const int fd_;
  const std::string path_;
  uint64_t old_size_;
  std::atomic<uint64_t> size_{0};
  // Held while waiting for the disk, only by Sync.
  absl::Mutex sync_mutex_;
  absl::Status sync_failed_ ABSL_GUARDED_BY(sync_mutex_);
};

class Posix : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return Errno(path);
    return Lasting(std::make_unique<PosixAppendFile>(fd, path), path);
  }

  absl::StatusOr<std::unique_ptr<AppendFile>> Reuse(const std::string& from, const std::string& to) override {
    const int fd = open(from.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return Errno(from);
    absl::Cleanup close_fd = [fd] { close(fd); };
    struct stat info;
    if (fstat(fd, &info) != 0) return Errno(from);
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) != 0) return Errno(to);
    std::move(close_fd).Cancel();
    return Lasting(std::make_unique<PosixAppendFile>(fd, to, info.st_size), to);
  }

  absl::Status Truncate(const std::string& path, uint64_t size) override {
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return Errno(path);
    const absl::Cleanup close_fd = [fd] { close(fd); };
    if (ftruncate(fd, size) != 0 || fsync(fd) != 0) return Errno(path);
    return absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) return Errno(to);
    return SyncFolderOf(to);
  }

  absl::Status Remove(const std::string& path) override {
    if (remove(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
    return Errno(path);
  }

  absl::Status MakeFolder(const std::string& path) override {
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string folder = path.substr(0, end);
      if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Errno(folder);
      if (end == std::string::npos) break;
    }
    struct stat info;
    if (stat(path.c_str(), &info) != 0) return Errno(path);
    if (!S_ISDIR(info.st_mode))
      return WithReason(v1::ERROR_REASON_STORAGE_FAILED,
                        absl::FailedPreconditionError(absl::StrCat(path, ": not a directory")));
    return SyncFolderOf(path);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    std::vector<std::string> names;
    DIR* entries = opendir(folder.c_str());
    if (entries == nullptr && errno == ENOENT) return names;
    if (entries == nullptr) return Errno(folder);
    while (const dirent* entry = readdir(entries)) {
      const absl::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    closedir(entries);
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  // Returns the file once its name is durable. Otherwise the name is durably free again, or the error is DATA_LOSS.
  static absl::StatusOr<std::unique_ptr<AppendFile>> Lasting(std::unique_ptr<AppendFile> file,
                                                             const std::string& path) {
    absl::Status status = SyncFolderOf(path);
    if (status.ok()) return file;
    if (remove(path.c_str()) != 0 || !SyncFolderOf(path).ok()) {
      return absl::DataLossError(absl::StrCat(status.message(), "; removing the new file failed too"));
    }
    return status;
  }
};

}  // namespace

FileSystem* PosixFileSystem() {
  static auto* files = new Posix;
  return files;
}

}  // namespace ballast
