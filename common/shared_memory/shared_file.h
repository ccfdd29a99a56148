// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// A file without a name in any file system, which this process has made, and where it is mapped.
struct MadeFile {
  int descriptor = -1;
  char* memory = nullptr;
};

// Makes a file that others find by that name, maps it, and then seals it: F_SEAL_SHRINK and others. It gets memory when
// it is touched. The caller closes and unmaps it. RESOURCE_EXHAUSTED if the system refuses.
absl::StatusOr<MadeFile> MakeSharedFile(const char* name, uint64_t bytes, int seals);

// Memory that another process of this machine has made as a file without a name in any file system, as the process
// describes it, and what this process requires of it.
struct SharedFile {
  uint32_t process = 0;
  uint32_t file = 0;
  // The name that the process gave it.
  std::string name;
  uint64_t bytes = 0;
  // What it must be sealed against: F_SEAL_SHRINK and others.
  int seals = 0;
  // For open(2).
  int flags = 0;
};

// Returns a descriptor, which the caller closes. FAILED_PRECONDITION if this process cannot open the file, or it is not
// as described: nothing else is opened, whatever the description says.
absl::StatusOr<int> OpenSharedFile(const SharedFile& want);

// Returns the FAILED_PRECONDITION for a file that is not as described.
absl::Status SharedFileError(uint32_t process, uint32_t file, absl::string_view why);

// Returns where the symbolic link points; empty if it is none.
std::string LinkTarget(const std::string& path);

}  // namespace ballast
