// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/command/server_connection.h"

namespace ballast {

// Asks the coordinator for a checkpoint and waits until it is saved. `stop`: the servers are about to be stopped, see
// SaveCheckpointRequest. `wait` pauses that long; it returns false to end the wait: CANCELLED. DEADLINE_EXCEEDED names
// what the checkpoint waits for; FAILED_PRECONDITION says why the job saves none.
absl::StatusOr<v1::SaveCheckpointResponse> RequestCheckpoint(ProgressSource& source, bool stop, absl::Duration timeout,
                                                             absl::FunctionRef<bool(absl::Duration)> wait);

}  // namespace ballast
