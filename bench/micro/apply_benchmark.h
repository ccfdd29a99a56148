// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ballast {

struct ApplyBenchmarkOptions {
  // Of the model, 1 to 2^30; cut into slices as a server cuts them.
  uint64_t elements = uint64_t{32} << 20;
  // For each optimizer, at most 3600; at least three rounds are made whatever it is.
  double seconds = 2;
};

struct ApplyResult {
  // As a job file names it.
  std::string optimizer;
  // Of memory traffic: each array that an update reads, and each that it writes, counted once.
  double gb_per_second = 0;
  // Of a loop that reads and writes the same arrays and computes nothing, in the same run.
  double limit_gb_per_second = 0;
  double ratio = 0;
};

// Applies each optimizer to a model in memory, with one thread, slice by slice, in place; its rounds alternate with
// those of the limit, and the best of either counts. INVALID_ARGUMENT for options out of range.
absl::StatusOr<std::vector<ApplyResult>> RunApplyBenchmark(const ApplyBenchmarkOptions& options);

}  // namespace ballast
