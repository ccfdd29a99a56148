// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ballast {

// What a process holds now; zeros where it has ended.
struct ProcessUse {
  uint64_t resident_bytes = 0;
  uint64_t peak_resident_bytes = 0;
  uint64_t descriptors = 0;

  static ProcessUse Of(pid_t pid);
};

// Those children of a process, at this moment, whose program's path ends so.
std::vector<pid_t> ChildrenOf(pid_t parent, const std::string& program);

}  // namespace ballast
