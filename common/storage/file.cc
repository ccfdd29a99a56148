// SPDX-License-Identifier: Apache-2.0
#include "common/storage/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/storage/output_file.h"

namespace ballast {

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
  absl::StatusOr<OutputFile> file = OutputFile::Open(path);
  if (!file.ok()) return file.status();
  for (absl::string_view part : parts) {
    if (absl::Status status = file->Write(part); !status.ok()) return status;
  }
  return file->Finish();
}

}  // namespace ballast
