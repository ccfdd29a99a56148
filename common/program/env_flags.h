// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Sets the program's absl flags, those of `names` alone: from the environment variables BALLAST_<NAME> (upper case),
// then from the command line, which so wins. Unknown flags, bad values and stray words are INVALID_ARGUMENT naming the
// flag or variable (absl::ParseCommandLine would exit with 1); --help prints `usage` and the flags and exits with 0.
absl::Status ParseFlags(int argc, char** argv, absl::string_view usage, const std::vector<std::string>& names);

// The rank that `text` says: a number, or a pod's name that ends in one after a dash ("ballast-server-3"). -1: neither.
int ParseRank(absl::string_view text);

}  // namespace ballast
