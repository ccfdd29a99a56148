// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/programs/process_use.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ballast {
namespace {

// Returns a field such as "VmRSS" of /proc/<pid>/status, in bytes.
uint64_t StatusBytes(pid_t pid, const std::string& field) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(field + ":", 0) != 0) continue;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t kib = 0;
    if (words.size() > 1 && absl::SimpleAtoi(words[1], &kib)) return kib * 1024;
  }
  return 0;
}

}  // namespace

ProcessUse ProcessUse::Of(pid_t pid) {
  ProcessUse use = {StatusBytes(pid, "VmRSS"), StatusBytes(pid, "VmHWM")};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    static_cast<void>(entry);
    ++use.descriptors;
  }
  return use;
}

std::vector<pid_t> ChildrenOf(pid_t parent, const std::string& program) {
  std::ifstream file(absl::StrCat("/proc/", parent, "/task/", parent, "/children"));
  std::vector<pid_t> children;
  for (pid_t pid; file >> pid;) {
    std::string path;
    std::getline(std::ifstream(absl::StrCat("/proc/", pid, "/cmdline")), path, '\0');
    if (absl::EndsWith(path, program)) children.push_back(pid);
  }
  return children;
}

}  // namespace ballast
