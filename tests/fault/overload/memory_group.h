// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// Owns a kernel control group (version 1 or 2) below this process's own, with a hard memory limit: a process that
// exceeds it is killed. Its processes must have ended before it is destroyed. Thread safety: none.
class MemoryGroup {
 public:
  // UNAVAILABLE, with the reason, if this process may not make a control group.
  static absl::StatusOr<std::unique_ptr<MemoryGroup>> Create(uint64_t limit_bytes);
  ~MemoryGroup();
  MemoryGroup(const MemoryGroup&) = delete;

  // Memory that the process takes from now on counts.
  absl::Status Add(pid_t pid) const;

  // Peak memory as counted by the kernel; 0 if the kernel does not count it.
  uint64_t peak_bytes() const;

 private:
  MemoryGroup(std::string folder, bool unified) : folder_(std::move(folder)), unified_(unified) {}

  const std::string folder_;
  const bool unified_;
};

}  // namespace ballast
