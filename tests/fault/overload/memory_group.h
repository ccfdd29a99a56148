// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// A control group of the kernel's (version 1 or 2) below this process's own, with a hard limit of memory: who needs
// more is killed. It is removed with the object, whose processes must have ended by then. Thread safety: none.
class MemoryGroup {
 public:
  // UNAVAILABLE, saying what is missing, where this process may not make one.
  static absl::StatusOr<std::unique_ptr<MemoryGroup>> Create(uint64_t limit_bytes);
  ~MemoryGroup();
  MemoryGroup(const MemoryGroup&) = delete;

  // What the process takes from now on counts.
  absl::Status Add(pid_t pid) const;

  // Most that was used at once, as the kernel counts it; 0 where it does not.
  uint64_t peak_bytes() const;

 private:
  MemoryGroup(std::string folder, bool unified) : folder_(std::move(folder)), unified_(unified) {}

  const std::string folder_;
  const bool unified_;
};

}  // namespace ballast
