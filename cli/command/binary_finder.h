// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ballast {

// The path of `ballast_<role>` ("server", "worker"): what the environment variable BALLAST_<ROLE>_BINARY names; else
// beside the program at `own_path`, in the folder <role> beside that one's folder (as Bazel builds them), or on PATH.
// NOT_FOUND says where it was looked for.
absl::StatusOr<std::string> FindBinary(const std::string& role, const std::string& own_path);

// Of the program that runs, links followed.
std::string OwnPath();

}  // namespace ballast
