// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tables/range/row_layout.h"

namespace ballast {

// The limit of rows in process: cache lines that one core reads at random from memory on 2 MiB pages.

// Result for one number of loads in flight.
struct RandomLines {
  int in_flight = 0;
  // Lines per second of CPU time.
  double rate = 0;
};

// Measures `bytes` of memory with 1, 4, 8, 16 and 32 loads in flight: as many chains, in each of which a line's address
// depends on the line before it. Each of the five measurements takes about `seconds`. RESOURCE_EXHAUSTED if the machine
// does not have the memory.
absl::StatusOr<std::vector<RandomLines>> MeasureRandomLines(uint64_t bytes, double seconds);

// The highest rate.
double BestRate(const std::vector<RandomLines>& lines);

// Cache lines that a row touches on average, if it starts at any of the addresses that its layout allows.
double LinesOfRow(const RowLayout& layout);

// Lines that a pull moves per row: 1.1 of the index, and the row's. A push also writes the row's lines back.
double LinesPerPull(const RowLayout& layout);
double LinesPerPush(const RowLayout& layout);

// CPU time of the calling thread.
double ThreadCpuSeconds();

}  // namespace ballast
