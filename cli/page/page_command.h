// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command/command.h"

namespace ballast {

// `ballast page`: serves the live page of runs until Ctrl-C. `ballast top`: shows the same figures in the terminal.
RunCommand PageCommand, TopCommand;
FlagTable PageFlags, TopFlags;

}  // namespace ballast
