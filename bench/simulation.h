// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// A consistency mode under the name that the benchmarks use.
struct SimulatedMode {
  std::string name;
  v1::ConsistencyPolicy policy;
  // Number of steps that a worker computes for each push.
  int steps_per_push = 1;
};

// "sync", "async", "bounded" (with that staleness), "quorum" (all workers but one, if there are at least two),
// "local_sgd" (a push every 4 steps).
std::vector<SimulatedMode> AllModes(int workers, int staleness);
std::vector<std::string> ModeNames();

struct SimulatedWorker {
  // Steps computed and pushed.
  double steps_per_second = 0;
  uint64_t pushes = 0;
  // Pushes that came after their step was over and were not used.
  uint64_t dropped = 0;
  uint64_t max_staleness = 0;
  // Mean over its applied pushes.
  double mean_staleness = 0;
  // Fraction of its time between a push and its response, 0 to 1.
  double exchange_share = 0;
};

// Runs a real server and workers that push-pull a real tensor of 64 Ki elements, with a timed wait as computation: so
// two cores carry eight workers, and only the waiting that a mode causes is measured. Each worker is a thread with its
// own client and runs for `seconds`, of which the first quarter does not count; compute[i] is the duration of worker
// i's step. Blocks; every wait has a deadline. An error names the mode.
absl::StatusOr<std::vector<SimulatedWorker>> Simulate(const SimulatedMode& mode,
                                                      const std::vector<absl::Duration>& compute, double seconds);

double TotalRate(const std::vector<SimulatedWorker>& workers);

}  // namespace ballast
