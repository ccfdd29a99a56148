// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/types/span.h"
#include "cli/command/command.h"

namespace ballast {

// Returns a script for bash that completes the program's commands, their flags, the values of flags, and job files and
// directories. Values come from a flag's placeholder: choices ("auto|cpu|cuda"), FILE or DIR.
std::string BashCompletion(absl::Span<const Command> commands);

}  // namespace ballast
