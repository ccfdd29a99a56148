// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/command/command.h"

namespace ballast {

// `ballast checkpoint list|verify|export`, and its flags.
RunCommand CheckpointCommand;
FlagTable CheckpointFlags;

// Returns the manifest path of the newest checkpoint in `where`: a run directory, a checkpoint directory, or a manifest
// itself. NOT_FOUND if a directory contains no checkpoint; any other path is returned unchecked.
absl::StatusOr<std::string> FindManifest(const std::string& where);

}  // namespace ballast
