// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/job.pb.h"
#include "common/job/job_file_validation.h"  // IWYU pragma: export

namespace ballast {

// Reads a job file, as ParseJob does its text. NOT_FOUND names a path that is not there.
absl::StatusOr<v1::Job> LoadJob(const std::string& path);

// Turns a job file's text into a job that ValidateJob accepts; a policy that is not there becomes
// sync. INVALID_ARGUMENT lists up to five faults, a line each, the first in the text first:
// "fashion.textproto:12:3: model.layers.dense has no field "unit"; did you mean "units"?". A value out of its range is
// named with the place of its field or, where that is not set, of what is around it.
// `file_name` is for messages only.
absl::StatusOr<v1::Job> ParseJob(absl::string_view text, absl::string_view file_name);

}  // namespace ballast
