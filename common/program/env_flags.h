// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Sets the program's absl flags in `names`, and no others: from the environment variables BALLAST_<NAME> (upper
// case), then from the command line, which takes precedence. INVALID_ARGUMENT, naming the flag or variable, for
// unknown flags, bad values and stray words (absl::ParseCommandLine would exit with 1). The words are those of
// Arguments; the last of a repeated flag counts. --help prints `usage` and the flags and exits with 0.
absl::Status ParseFlags(int argc, char** argv, absl::string_view usage, const std::vector<std::string>& names);

}  // namespace ballast
