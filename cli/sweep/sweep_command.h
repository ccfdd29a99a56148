// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command/command.h"

namespace ballast {

// `ballast sweep`: trains a job once for each combination of values, each time by a `ballast launch`.
RunCommand SweepCommand;
// Includes the flags that it passes to `ballast launch`.
FlagTable SweepFlags;

}  // namespace ballast
