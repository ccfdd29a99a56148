// SPDX-License-Identifier: Apache-2.0
#include "common/program/memory_limit.h"

#include <unistd.h>

#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ballast {
namespace {

// Applies the limits of a group and of those that contain it. A container may see only its own group, at the top.
void ApplyLimits(const std::string& top, std::string group, const char* file, MemoryLimit& limit) {
  while (true) {
    const std::string path = absl::StrCat(top, group == "/" ? "" : group, "/", file);
    std::string text;
    uint64_t bytes = 0;
    // "max", or a number beyond the machine's memory, is no limit.
    if (std::ifstream(path) >> text && absl::SimpleAtoi(text, &bytes) && bytes < limit.bytes) limit = {bytes, path};
    if (group.empty() || group == "/") return;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

MemoryLimit ReadMemoryLimit(const std::string& root) {
  MemoryLimit limit;
  limit.bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // ID:CONTROLLERS:PATH; version 2 has the one line 0::PATH.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    if (parts[0] == "0" && parts[1].empty()) {
      ApplyLimits(root + "/sys/fs/cgroup", parts[2], "memory.max", limit);
    }
    for (absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller == "memory") {
        ApplyLimits(root + "/sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes", limit);
      }
    }
  }
  return limit;
}

}  // namespace ballast
