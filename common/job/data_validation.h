// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ballast/v1/job.pb.h"
#include "common/text/validation_errors.h"

namespace ballast {

// Returns the path of a source that may be a stream (Data.stream); empty for another format.
std::string StreamPath(const v1::DataSource& source);

// Adds the errors of a job's data that the limits of its fields do not cover. Opens no file.
void CheckData(const v1::Data& data, ValidationErrors& errors);

}  // namespace ballast
