// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/step_task.h"

namespace ballast {

// What a sync step costs at the least: threads of one process, one for each worker, compute a batch each with a replica
// of the task's model, wait for each other, apply half of the summed gradients each to both replicas, and wait again.
// No gradient and no value is copied, and nothing is sent. The share that waits is all but the computation of batches.
// Runs in a process of its own, of this program.
absl::StatusOr<StepResult> TrainInLockStep(const StepTask& task);

// The process: trains that model, "small" or "large", for so many seconds, and prints the samples per second and the
// share that waits.
absl::Status RunLockStep(const std::string& model, const std::string& seconds);

}  // namespace ballast
