// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "bench/step_task.h"

namespace ballast {

// Sends the messages of steps through a bare TCP stream over loopback. Its processor time counts, sender's and
// receiver's, divided by the number of workers: as if as many processors shared it, and did nothing else.
absl::StatusOr<StepResult> StreamLikeAStep(const StepTask& task);

// Samples per second of steps that do what both do, one after the other.
double RateOfBoth(double samples_per_second, double other_samples_per_second);

}  // namespace ballast
