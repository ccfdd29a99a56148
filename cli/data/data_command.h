// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command/command.h"

namespace ballast {

// `ballast data ctr DIR`.
RunCommand DataCommand;
FlagTable DataFlags;

}  // namespace ballast
