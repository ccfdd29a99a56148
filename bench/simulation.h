// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// A consistency mode as the benchmarks name it.
struct SimulatedMode {
  std::string name;
  v1::ConsistencyPolicy policy;
  // Steps that a worker computes for each push.
  int steps_per_push = 1;
};

// "sync", "async", "bounded" (of that staleness), "quorum" (all but one worker, where there are two), "local_sgd" (a
// push every 4 steps).
std::vector<SimulatedMode> AllModes(int workers, int staleness);
std::vector<std::string> ModeNames();

struct SimulatedWorker {
  // That it computed and pushed.
  double steps_per_second = 0;
  uint64_t pushes = 0;
  // Of them those that came after their step was over and were not used.
  uint64_t dropped = 0;
  uint64_t max_staleness = 0;
  // Over its applied pushes.
  double mean_staleness = 0;
  // Part of its time from a push to the answer, 0 to 1.
  double exchange_share = 0;
};

// A real server and workers that push-pull a real tensor of 64 Ki elements, but whose computing is a timed wait: so two
// cores carry eight workers, and what a mode makes a worker wait for is all that is measured.
// Runs each worker, a thread with a client of its own, for `seconds`, of which the first quarter does not count;
// compute[i] is the time that worker i takes for a step. Blocks; every wait is bounded. An error names the mode.
absl::StatusOr<std::vector<SimulatedWorker>> Simulate(const SimulatedMode& mode,
                                                      const std::vector<absl::Duration>& compute, double seconds);

double TotalRate(const std::vector<SimulatedWorker>& workers);

}  // namespace ballast
