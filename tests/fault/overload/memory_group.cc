// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/overload/memory_group.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ballast {
namespace {

bool Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  return static_cast<bool>(file << text << std::flush);
}

// Returns this process's own control group: its directory (empty if none limits memory), and true for version 2.
std::pair<std::string, bool> OwnGroup() {
  std::ifstream file("/proc/self/cgroup");
  std::string line, unified;
  while (std::getline(file, line)) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    for (absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller == "memory") return {absl::StrCat("/sys/fs/cgroup/memory", parts[2]), false};
    }
    if (parts[0] == "0") unified = absl::StrCat("/sys/fs/cgroup", parts[2]);
  }
  return {unified, true};
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryGroup>> MemoryGroup::Create(uint64_t limit_bytes) {
  static int number = 0;
  const auto [parent, unified] = OwnGroup();
  const std::string folder = absl::StrCat(parent, "/ballast-", getpid(), "-", number++);
  if (parent.empty() || mkdir(folder.c_str(), 0755) != 0) {
    return absl::UnavailableError(absl::StrCat("no control group: cannot make ", folder, ": ", strerror(errno)));
  }
  std::unique_ptr<MemoryGroup> group(new MemoryGroup(folder, unified));
  const char* const limit = unified ? "/memory.max" : "/memory.limit_in_bytes";
  if (Write(folder + limit, absl::StrCat(limit_bytes))) return group;
  return absl::UnavailableError(absl::StrCat("no control group: cannot write ", folder, limit));
}

MemoryGroup::~MemoryGroup() { rmdir(folder_.c_str()); }

absl::Status MemoryGroup::Add(pid_t pid) const {
  if (Write(folder_ + "/cgroup.procs", absl::StrCat(pid))) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("no control group: cannot put process ", pid, " into ", folder_));
}

uint64_t MemoryGroup::peak_bytes() const {
  uint64_t bytes = 0;
  std::ifstream(folder_ + (unified_ ? "/memory.peak" : "/memory.max_usage_in_bytes")) >> bytes;
  return bytes;
}

}  // namespace ballast
