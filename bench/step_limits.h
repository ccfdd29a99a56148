// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "bench/step_contestants.h"

namespace ballast {

// What the exchange of a step costs at the least, if all processors compute: the limits of a step on a machine with as
// many processors as workers. Each result has the samples per second of steps that do nothing else.

// Copies each worker's gradient once, to where nobody changes it while it is checked and applied, and the values once
// for each worker. As many threads as workers do so at the same time.
absl::StatusOr<StepResult> CopyLikeAStep(const StepTask& task);

// Sends the same bytes through a bare TCP stream over loopback. Its processor time counts, sender's and receiver's,
// divided by the number of workers.
absl::StatusOr<StepResult> StreamLikeAStep(const StepTask& task);

// Samples per second of steps that do what both do, one after the other.
double RateOfBoth(double samples_per_second, double other_samples_per_second);

}  // namespace ballast
