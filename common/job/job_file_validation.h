// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "ballast/v1/job.pb.h"
#include "common/text/validation_errors.h"

namespace ballast {

// Checks that every field of a job is in the range that job.proto and tensor.proto state. INVALID_ARGUMENT names up
// to five fields that are not, with their values and ranges. Does not check that layers fit each other and the data;
// the model does.
absl::Status ValidateJob(const v1::Job& job);

// Checks that the fields of a job's model are in the range that job.proto states. Does not check that layers fit each
// other and the data; the worker does.
void CheckModel(const v1::Model& model, ValidationErrors& errors);

}  // namespace ballast
