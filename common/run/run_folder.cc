// SPDX-License-Identifier: Apache-2.0
#include "common/run/run_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// Names the absolute path, because the current directory may be another one than the user thinks.
absl::Status CannotWrite(const std::string& path, int error) {
  std::error_code ignored;
  const std::string absolute = std::filesystem::absolute(path, ignored).string();
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write the run directory ", absolute.empty() ? path : absolute,
                                                 " (--run_dir names another one)"));
}

absl::Status MakeFolders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return CannotWrite(path, error.value());
  if (!std::filesystem::is_directory(path, error)) {
    return absl::FailedPreconditionError(absl::StrCat("run directory ", path, ": is a file, want a directory"));
  }
  return absl::OkStatus();
}

std::string WithoutTrailingSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

RunFolder::RunFolder(std::string path) : path_(WithoutTrailingSlashes(std::move(path))) {}

absl::StatusOr<RunFolder> RunFolder::Create(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("run directory: got an empty path");
  RunFolder folder(path);
  if (absl::Status status = MakeFolders(folder.path()); !status.ok()) return status;
  struct stat info;
  if (lstat(folder.metrics().c_str(), &info) == 0) {
    return absl::AlreadyExistsError(absl::StrCat(
        "run directory ", folder.path(), ": already holds a run (metrics.jsonl); choose another one, or move it away"));
  }
  if (access(folder.path().c_str(), W_OK | X_OK) != 0) {
    return CannotWrite(folder.path(), errno);
  }
  return folder;
}

absl::StatusOr<RunFolder> RunFolder::CreateUnder(const std::string& parent, absl::string_view job, absl::Time now) {
  if (absl::Status status = MakeFolders(parent); !status.ok()) return status;
  const std::string stem =
      absl::StrCat(parent, "/", job, "-", absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone()));
  for (int number = 1; number <= 1000; ++number) {
    const std::string path = number == 1 ? stem : absl::StrCat(stem, "-", number);
    if (mkdir(path.c_str(), 0755) == 0) return RunFolder(path);
    if (errno != EEXIST) return CannotWrite(path, errno);
  }
  return absl::ResourceExhaustedError(absl::StrCat("run directory ", stem, ": 1000 runs started in this second"));
}

}  // namespace ballast
