// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ballast {

// Returns the path of the program `ballast_<role>` ("server", "worker"). If the environment variable
// BALLAST_<ROLE>_BINARY is set, only its path is tried. Otherwise the search order is: the directory D of `own_path`,
// D/../<role> (Bazel's layout), PATH. A NOT_FOUND error lists the places that were searched.
absl::StatusOr<std::string> FindBinary(const std::string& role, const std::string& own_path);

// Returns the path of the running program, with symbolic links resolved.
std::string OwnPath();

}  // namespace ballast
