// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ballast/v1/table.pb.h"
#include "bench/bench_report.h"

namespace ballast {

struct RowsOptions {
  // Sizes of the tables.
  std::vector<uint64_t> rows;
  // Weights per row of the tables in process.
  std::vector<int> dims;
  // Distinct ids of a call.
  size_t ids = 0;
  // Duration of each measurement.
  double seconds = 0;
};

// Weights per row of tables that are measured at one dim.
inline constexpr int kRowDim = 16;

// The job and the table on a server: of dim 16, with row-wise Adagrad. Larger tables are measured in process only.
inline constexpr char kRowsJob[] = "bench";
inline constexpr uint64_t kMostServerRows = 50'000'000;
inline constexpr uint32_t kRowsTable = 1;
v1::TableSpec RowsTable();

// Rows of a table of `rows` rows at dim 16 if it has another dim: above 10^6 rows, larger rows are fewer, so that the
// table takes about the same memory.
uint64_t RowsAtDim(uint64_t rows, int dim);

// The end of a ratio's name: "100000_rows".
std::string RowsKey(uint64_t rows);

// Returns whether the machine has memory for a table and an index of any store; adds a note if not.
bool HasMemoryFor(uint64_t rows, int dim, BenchReport& report);

// --- the parts of `ballast bench rows`, one per file; each adds its rows, ratios and notes to the report ---

// `table`: pulls and pushes in process, on one core, compared with random cache lines and with other maps.
absl::Status MeasureTables(const RowsOptions& options, BenchReport& report, std::ostream& out);
// `server`: pulls and pushes through the client, compared with a bare TCP stream and with Redis.
absl::Status MeasureServer(const RowsOptions& options, BenchReport& report, std::ostream& out);
// `memory`: bytes of a row with everything, compared with its weights.
absl::Status MeasureMemory(const RowsOptions& options, BenchReport& report, std::ostream& out);
// `growth`: pushes that create rows, into a table that grows, compared with one that has room.
absl::Status MeasureGrowth(const RowsOptions& options, BenchReport& report, std::ostream& out);
// `checkpoint`: how long pushes wait for a server that saves a checkpoint, and how small an increment is.
absl::Status MeasureCheckpoint(const RowsOptions& options, BenchReport& report, std::ostream& out);

}  // namespace ballast
