// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ballast {

// Owns a new directory in TMPDIR or /tmp, for this user only, and its guard: a process that removes the directory once
// this one has ended, even by SIGKILL, because there are keys in it. Thread safety: confined to one thread.
class GuardedDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<GuardedDirectory>> Create();
  // Returns once the directory is removed and the guard has ended.
  ~GuardedDirectory();
  GuardedDirectory(const GuardedDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit GuardedDirectory(int life) : life_(life) {}

  std::string path_;
  // Closed by the end of this process, which the guard awaits.
  const int life_;
  pid_t guard_ = -1;
};

}  // namespace ballast
