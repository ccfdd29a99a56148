// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// Reads a small file that holds a secret. PERMISSION_DENIED, with the mode and the remedy, if others than its owner
// may read or change it. Its owner must be this process's user or root; root may let the process's own group read it,
// which is how Kubernetes mounts a secret. INVALID_ARGUMENT if the file cannot be read or is too large. `what`
// ("--token_file") starts every error message.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, const std::string& what);

// Creates a file with mode 0600. ALREADY_EXISTS if the path exists.
absl::Status WritePrivateFile(const std::string& path, const std::string& content);

}  // namespace ballast
