// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ballast {

// Folders of the control groups that limit this process, such as those of its container: each group before the one that
// contains it. They may lack the files of a limit, or not exist: a container may see only its own group, at the top.
struct ControlGroups {
  // Of version 2, with files such as memory.max.
  std::vector<std::string> unified;
  // Of version 1, of the controller asked for, with files such as memory.limit_in_bytes.
  std::vector<std::string> controlled;
};

// Returns the groups of a controller, such as "memory". `root` is the folder that has proc/ and sys/, for tests. Thread
// safety: safe from any thread.
ControlGroups FindControlGroups(absl::string_view controller, const std::string& root = "");

}  // namespace ballast
