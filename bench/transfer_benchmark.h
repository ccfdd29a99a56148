// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/bench_report.h"

namespace ballast {

struct TransferOptions {
  std::vector<uint64_t> sizes;
  int servers = 1;
  int workers = 1;
  // Duration of each measurement.
  double seconds = 1;
};

// Moves tensors of each size to and from real servers, in turn with a bare TCP stream, the plain generated stub and
// an empty call; prints the table to `out` row by row.
absl::StatusOr<BenchReport> RunTransferBenchmark(const TransferOptions& options, std::ostream& out);

// `ballast bench transfer`.
int TransferCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace ballast
