// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/launch/launch_request.h"
#include "common/program/arguments.h"

namespace ballast {

// Returns a job's name made of a command: that of its script, "fashion_mnist" for `python3 examples/fashion_mnist.py`,
// with only the characters that a name may have.
std::string JobNameOf(absl::Span<const std::string> program);

// Checks the flags of `ballast run` and its program, the words after "--". `own_path` is the path of this program: the
// Python package beside it is made known to the user's. In the request, the paths of the servers and of the run
// directory are missing. Errors name the flag or the program.
absl::StatusOr<LaunchRequest> ReadRunRequest(const Arguments& arguments, const std::string& own_path);

}  // namespace ballast
