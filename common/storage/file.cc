// SPDX-License-Identifier: Apache-2.0
#include "common/storage/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// Makes the rename durable: it is stored in the directory's own block.
absl::Status SyncFolderOf(const std::string& path) {
  const std::string folder = FolderOf(path);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, folder);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  // Some file systems cannot sync a directory and return EINVAL.
  if (fsync(fd) != 0 && errno != EINVAL) return absl::ErrnoToStatus(errno, folder);
  return absl::OkStatus();
}

// If the file system allows it, the file has no name until it is complete, so that nothing remains of it if the process
// is killed.
absl::Status WriteAndSync(const std::string& path, absl::Span<const absl::string_view> parts) {
  int fd = open(FolderOf(path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
  std::string nameless = absl::StrCat("/proc/self/fd/", fd);
  // Without /proc the file could not get a name.
  if (fd >= 0 && access(nameless.c_str(), F_OK) != 0) {
    close(fd);
    fd = -1;
  }
  if (fd < 0) {
    nameless.clear();
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  }
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  for (absl::string_view part : parts) {
    if (absl::Status status = WriteAll(fd, part, path); !status.ok()) return status;
  }
  if (fsync(fd) != 0) return absl::ErrnoToStatus(errno, path);
  if (!nameless.empty()) {
    // A process with the same id may have left one.
    unlink(path.c_str());
    if (linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      return absl::ErrnoToStatus(errno, path);
    }
  }
  std::move(close_fd).Cancel();
  if (close(fd) != 0) return absl::ErrnoToStatus(errno, path);
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteAll(int fd, absl::string_view data, const std::string& path) {
  while (!data.empty()) {
    const ssize_t written = write(fd, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, path);
    data.remove_prefix(written);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  std::string content(info.st_size, '\0');
  size_t size = 0;
  // A file that grows during the read is cut at its initial size: its writer only appends.
  while (size < content.size()) {
    const ssize_t got = read(fd, content.data() + size, content.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, path);
    if (got == 0) break;
    size += got;
  }
  content.resize(size);
  return content;
}

absl::Status WriteFileAtomically(const std::string& path, absl::Span<const absl::string_view> parts) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  absl::Status status = WriteAndSync(temporary, parts);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, path);
  }
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return SyncFolderOf(path);
}

}  // namespace ballast
