// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Checks the job name of a request. FAILED_PRECONDITION (WRONG_JOB) if it is not the job that this process holds. An
// empty `named` means the only job; an empty `held` means that the process holds no job yet.
absl::Status CheckHeldJob(absl::string_view held, absl::string_view named);

}  // namespace ballast
