// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/rows/row_store.h"
#include "bench/rows/row_workload.h"
#include "bench/rows/rows_parts.h"

namespace ballast {
namespace {

// Milliseconds of CPU time of pushes, which other programs disturb less than their duration.
struct PushTimes {
  double p50 = 0;
  double p99 = 0;
  double slowest = 0;
};

PushTimes FillTable(uint64_t rows, size_t ids, bool presized) {
  const std::unique_ptr<RowStore> store = MakeBallastRows(presized ? rows : 0, kRowDim);
  std::vector<double> times;
  for (double seconds : RowWorkload(kRowDim, ids).Fill(*store, rows)) times.push_back(1e3 * seconds);
  return {Median(times), Percentile(times, 0.99), *std::max_element(times.begin(), times.end())};
}

}  // namespace

absl::Status MeasureGrowth(const RowsOptions& options, BenchReport& report, std::ostream& out) {
  const uint64_t rows = *std::max_element(options.rows.begin(), options.rows.end());
  if (!HasMemoryFor(rows, kRowDim, report)) return absl::OkStatus();
  PushTimes times[2];
  for (const bool presized : {true, false}) {
    const PushTimes found = times[presized] = FillTable(rows, options.ids, presized);
    const char* const table = presized ? "presized" : "growing";
    report.rows.push_back({{"part", "growth"},
                           {"table", table},
                           {"rows", rows},
                           {"dim", kRowDim},
                           {"ids", options.ids},
                           {"p50_milliseconds", found.p50},
                           {"p99_milliseconds", found.p99},
                           {"slowest_milliseconds", found.slowest}});
    out << absl::StrFormat(
               "growth    0 to %d rows, %s table: CPU ms per push of %d new rows: p50 %.2f, p99 %.2f, slowest %.2f\n",
               rows, table, options.ids, found.p50, found.p99, found.slowest)
        << std::flush;
  }
  report.ratios.push_back(
      {"growth_p99_more_milliseconds", times[false].p99 - times[true].p99, 1, true,
       absl::StrFormat("CPU ms by which p99 of a push is longer while a table grows to %g rows", 1.0 * rows)});
  return absl::OkStatus();
}

}  // namespace ballast
