// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ballast/v1/job.pb.h"

namespace ballast {

// Returns the job with the defaults that job.proto and tensor.proto state, so that a reader sees what runs: numbers of
// the messages that the job has (their Limits.zero), encodings, strides and initializers. The result trains to the same
// bits. Leaves out the optimizers' optional constants, whose defaults are more precise than a float, and the names of
// layers. Once more changes nothing.
v1::Job WithDefaults(v1::Job job);

}  // namespace ballast
