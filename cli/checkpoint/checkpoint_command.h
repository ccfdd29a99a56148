// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command/command.h"

namespace ballast {

// `ballast checkpoint list|verify|export|save`, and its flags.
RunCommand CheckpointCommand;
FlagTable CheckpointFlags;

}  // namespace ballast
