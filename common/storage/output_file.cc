// SPDX-License-Identifier: Apache-2.0
#include "common/storage/output_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/storage/file.h"

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

// The name by which a file without one can be linked.
std::string NameOf(int file) { return absl::StrCat("/proc/self/fd/", file); }

// Returns the descriptor of a file without a name in the folder of `path`, or -1 if it could not get one later.
int OpenNameless(const std::string& path) {
  const int file = open(FolderOf(path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
  if (file < 0 || access(NameOf(file).c_str(), F_OK) == 0) return file;
  close(file);
  return -1;
}

// Gives a file its name if it has none.
bool GiveName(int file, const std::string& name) {
  struct stat info;
  if (fstat(file, &info) != 0 || info.st_nlink > 0) return true;
  // A process with the same id may have left one.
  unlink(name.c_str());
  return linkat(AT_FDCWD, NameOf(file).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

}  // namespace

OutputFile OutputFile::StandardOutput() { return OutputFile("standard output", "", STDOUT_FILENO); }

absl::StatusOr<OutputFile> OutputFile::Open(const std::string& path) {
  // It may lead to a regular file, whose name is another.
  if (path == "/dev/stdout") return StandardOutput();
  // A pipe or device must not be replaced by a file.
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    const int device = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (device < 0) return absl::ErrnoToStatus(errno, path);
    return OutputFile(path, "", device);
  }
  std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  int file = OpenNameless(path);
  if (file < 0) file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return absl::ErrnoToStatus(errno, path);
  return OutputFile(path, std::move(temporary), file);
}

OutputFile::~OutputFile() {
  if (file_ > STDERR_FILENO) close(file_);
  if (file_ >= 0 && !temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status OutputFile::Write(absl::string_view text) { return WriteAll(file_, text, path_); }

absl::Status OutputFile::Finish() {
  if (temporary_.empty()) return absl::OkStatus();
  if (fsync(file_) != 0 || !GiveName(file_, temporary_) || rename(temporary_.c_str(), path_.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, path_);
  }
  if (close(std::exchange(file_, -1)) != 0) return absl::ErrnoToStatus(errno, path_);
  return SyncFolderOf(path_);
}

}  // namespace ballast
