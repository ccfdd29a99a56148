// SPDX-License-Identifier: Apache-2.0
#include "worker/predict/output_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/storage/file.h"

namespace ballast {

absl::StatusOr<OutputFile> OutputFile::Open(const std::string& path) {
  if (path.empty()) return OutputFile("standard output", "", STDOUT_FILENO);
  // A pipe or device must not be replaced by a file.
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    const int device = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (device < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    return OutputFile(path, "", device);
  }
  std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  return OutputFile(path, std::move(temporary), file);
}

OutputFile::~OutputFile() {
  if (file_ > STDERR_FILENO) close(file_);
  if (file_ >= 0 && !temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status OutputFile::Write(absl::string_view text) {
  return WriteAll(file_, text, absl::StrCat("cannot write ", path_));
}

absl::Status OutputFile::Finish() {
  if (temporary_.empty()) return absl::OkStatus();
  if (fsync(file_) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
  }
  close(std::exchange(file_, -1));
  return absl::OkStatus();
}

}  // namespace ballast
