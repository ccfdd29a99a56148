// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace ballast {

// The memory that this process may use.
struct MemoryLimit {
  uint64_t bytes = 0;
  // File of the control group that sets the limit, such as that of a container; empty if the machine's memory does.
  std::string source;
};

// Returns the smallest limit of the process's control groups, or the machine's memory if that is less. `root` is the
// directory that has proc/ and sys/, for tests. Thread safety: safe from any thread.
MemoryLimit ReadMemoryLimit(const std::string& root = "");

}  // namespace ballast
