// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// Reads a small file that holds a secret. PERMISSION_DENIED, naming the mode and what to do, for one that others than
// its owner may read or change. Its owner must be this process's user or root; root may let the process's own group
// read it, which is how Kubernetes mounts a secret. INVALID_ARGUMENT for what cannot be read or is too large; `what`
// ("--token_file") begins every message.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, const std::string& what);

// Makes a file with mode 0600 and that content. ALREADY_EXISTS where there is one.
absl::Status WritePrivateFile(const std::string& path, const std::string& content);

}  // namespace ballast
