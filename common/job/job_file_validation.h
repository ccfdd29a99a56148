// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "ballast/v1/job.pb.h"

namespace ballast {

// Whether every field of a job is in the range that job.proto and tensor.proto state.
// INVALID_ARGUMENT names each field that is not (up to five), what it is and what is allowed.
// Whether layers fit each other and the data is the model's affair.
absl::Status ValidateJob(const v1::Job& job);

}  // namespace ballast
