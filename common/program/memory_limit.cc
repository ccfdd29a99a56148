// SPDX-License-Identifier: Apache-2.0
#include "common/program/memory_limit.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/numbers.h"
#include "common/program/control_groups.h"

namespace ballast {
namespace {

void Apply(const std::string& path, MemoryLimit& limit) {
  std::string text;
  uint64_t bytes = 0;
  // "max", or a number beyond the machine's memory, is no limit.
  if (std::ifstream(path) >> text && absl::SimpleAtoi(text, &bytes) && bytes < limit.bytes) limit = {bytes, path};
}

}  // namespace

MemoryLimit ReadMemoryLimit(const std::string& root) {
  MemoryLimit limit;
  limit.bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  const ControlGroups groups = FindControlGroups("memory", root);
  for (const std::string& folder : groups.unified) Apply(folder + "/memory.max", limit);
  for (const std::string& folder : groups.controlled) Apply(folder + "/memory.limit_in_bytes", limit);
  return limit;
}

}  // namespace ballast
