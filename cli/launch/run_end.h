// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cli/command/server_connection.h"

// The steps of a launch before and after it stops its processes.
namespace ballast {

// Asks the coordinator for a checkpoint and waits for it, for at most 90 s. `wait` pauses that long and returns false
// to end the wait. Returns a line with the checkpoint's position, or why there is none; empty if `wait` ended it.
std::string SaveCheckpoint(ProgressSource& source, absl::FunctionRef<bool(absl::Duration)> wait);

// Removes the files that these processes, killed while they wrote, have left in the run directory: temporary files,
// and checkpoints without a manifest. Leaves files of others alone. All of the processes must have ended.
void RemovePartialFiles(const std::string& run_dir, absl::Span<const uint64_t> processes, uint32_t keep_checkpoints);

}  // namespace ballast
