// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/program/arguments.h"

namespace ballast {

// Flags of a launch that the environment sets: BALLAST_MODE=async means --mode=async.
struct EnvironmentFlags {
  // {"--mode=async"}: words that may stand in front of the command line's.
  std::vector<std::string> words;
  // Lines for the user that say which variables take effect and which are ignored.
  std::vector<std::string> lines;
};

// Takes the variables of Ballast out of this process's environment, so that servers and workers get only the flags that
// launch gives them. A variable of one of `flags` sets that flag, unless `words`, the command line, has the flag; the
// others are ignored. Those that are no flags (the paths of Ballast's own files, and the settings of the emulated GPU
// of tests) stay. Call before other threads start.
EnvironmentFlags TakeEnvironmentFlags(absl::Span<const FlagSpec> flags, absl::Span<const std::string> words);

// Returns the words behind those that the environment adds, and prints on `err` what it does.
std::vector<std::string> WithEnvironment(absl::Span<const FlagSpec> flags, absl::Span<const std::string> words,
                                         std::ostream& err);

}  // namespace ballast
