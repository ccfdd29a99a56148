// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ballast/v1/job.pb.h"
#include "common/text/validation_errors.h"

namespace ballast {

// Adds the errors of a job's data that the limits of its fields do not cover. Opens no file.
void CheckData(const v1::Data& data, ValidationErrors& errors);

}  // namespace ballast
