// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ballast {

// Returns the number of cores that this process may use, at least 1: those of its affinity, or of the smallest limit of
// its control groups, such as that of a container, if that is less. A fraction of a core counts as one. `root` is the
// folder that has proc/ and sys/, for tests. Thread safety: safe from any thread.
int CoreCount(const std::string& root = "");

}  // namespace ballast
