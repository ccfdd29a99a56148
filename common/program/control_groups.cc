// SPDX-License-Identifier: Apache-2.0
#include "common/program/control_groups.h"

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ballast {
namespace {

// Appends the group and those that contain it.
void AddWithParents(const std::string& top, std::string group, std::vector<std::string>& folders) {
  while (!group.empty() && group != "/") {
    folders.push_back(top + group);
    group.resize(group.rfind('/'));
  }
  folders.push_back(top);
}

}  // namespace

ControlGroups FindControlGroups(absl::string_view controller, const std::string& root) {
  ControlGroups groups;
  std::ifstream lines(root + "/proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    // ID:CONTROLLERS:PATH; version 2 has the one line 0::PATH.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    if (parts[0] == "0" && parts[1].empty()) AddWithParents(root + "/sys/fs/cgroup", parts[2], groups.unified);
    for (absl::string_view of_line : absl::StrSplit(parts[1], ',')) {
      if (of_line != controller) continue;
      AddWithParents(absl::StrCat(root, "/sys/fs/cgroup/", controller), parts[2], groups.controlled);
    }
  }
  return groups;
}

}  // namespace ballast
