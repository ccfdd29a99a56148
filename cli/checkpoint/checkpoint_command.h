// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ballast {

// `ballast checkpoint list|verify|export`. Answers the exit status.
int CheckpointCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

// The manifest of the newest checkpoint that `where` has: a manifest itself, a folder of checkpoints, or a run folder.
// NOT_FOUND where there is none.
absl::StatusOr<std::string> FindManifest(const std::string& where);

}  // namespace ballast
