// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ballast/v1/job.pb.h"
#include "common/text/validation_errors.h"

namespace ballast {

// Checks that the fields of a job's model are in the range that job.proto states. Does not check that layers fit each
// other and the data; the worker does.
void CheckModel(const v1::Model& model, ValidationErrors& errors);

}  // namespace ballast
