// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ballast {

// Current resource use of a process; zeros if it has ended.
struct ProcessUse {
  uint64_t resident_bytes = 0;
  uint64_t peak_resident_bytes = 0;
  uint64_t descriptors = 0;

  static ProcessUse Of(pid_t pid);
};

// Current children of a process whose program path ends with `program`.
std::vector<pid_t> ChildrenOf(pid_t parent, const std::string& program);

}  // namespace ballast
