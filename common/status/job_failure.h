// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/coordinator_service.pb.h"

namespace ballast {

// Adds the reason JOB_FAILED. If one member is at fault, the subjects "role" ("server", "worker", "standby"), "rank"
// and "process" identify it.
absl::Status WithJobFailure(const absl::Status& status, const v1::JobFailure& failure);

// Returns the same for ABORTED "the job has failed: `reason`".
absl::Status JobFailedError(absl::string_view reason, const v1::JobFailure& failure);

// Returns true for an error that says that the job has failed because a server was lost, and its shard with it. Such a
// job can only begin again, from a checkpoint.
bool IsLossOfServer(const absl::Status& status);

// Checks the job name of a request. FAILED_PRECONDITION (WRONG_JOB) if it is not the job that this process holds. An
// empty `named` means the only job; an empty `held` means that the process holds no job yet.
absl::Status CheckHeldJob(absl::string_view held, absl::string_view named);

}  // namespace ballast
