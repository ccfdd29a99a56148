// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ballast {

struct ApplyBenchmarkOptions {
  // Elements of the model, 1 to 2^30; cut into slices like on a server.
  uint64_t elements = uint64_t{32} << 20;
  // Time for each optimizer, at most 3600; always runs at least three rounds.
  double seconds = 2;
};

struct ApplyResult {
  // Name in a job file.
  std::string optimizer;
  // Memory traffic: each array that an update reads, and each that it writes, counted once.
  double gb_per_second = 0;
  // The same for a loop that reads and writes the same arrays without computing, in the same run.
  double limit_gb_per_second = 0;
  double ratio = 0;
};

// Applies each optimizer to a model in memory, with one thread, slice by slice, in place. Its rounds alternate with
// the limit's, and the best round of each counts. INVALID_ARGUMENT if an option is out of range.
absl::StatusOr<std::vector<ApplyResult>> RunApplyBenchmark(const ApplyBenchmarkOptions& options);

}  // namespace ballast
