// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/job.pb.h"
#include "common/job/job_file_validation.h"  // IWYU pragma: export

namespace ballast {

// Reads and parses a job file; see ParseJob. NOT_FOUND if the path does not exist.
absl::StatusOr<v1::Job> LoadJob(const std::string& path);

// Parses a job file's text into a job that ValidateJob accepts; a missing policy becomes sync. INVALID_ARGUMENT lists
// up to five faults, one per line, in the order of the text: "fashion.textproto:12:3: model.layers.dense has no field
// "unit"; did you mean "units"?". A value out of range is reported at its field or, if the field is not set, at the
// enclosing message. `file_name` is used in messages only.
absl::StatusOr<v1::Job> ParseJob(absl::string_view text, absl::string_view file_name);

}  // namespace ballast
