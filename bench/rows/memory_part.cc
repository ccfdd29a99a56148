// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/rows/row_store.h"
#include "bench/rows/row_workload.h"
#include "bench/rows/rows_parts.h"

namespace ballast {
namespace {

// A smaller table is judged only if there is no larger one, because its ranges take more than their rows.
constexpr uint64_t kManyRows = 10'000'000;

uint64_t ResidentBytes() {
  uint64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGE_SIZE);
}

}  // namespace

absl::Status MeasureMemory(const RowsOptions& options, BenchReport& report, std::ostream& out) {
  for (uint64_t rows : options.rows) {
    if (!HasMemoryFor(rows, kRowDim, report)) continue;
    RowWorkload workload(kRowDim, options.ids);
    // Otherwise the table would take memory that was freed and still counts.
    malloc_trim(0);
    const uint64_t before = ResidentBytes();
    const std::unique_ptr<RowStore> store = MakeBallastRows(0, kRowDim);
    workload.Fill(*store, rows);
    malloc_trim(0);
    const double resident = static_cast<double>(ResidentBytes() - before) / static_cast<double>(rows);
    const double counted = static_cast<double>(store->MemoryBytes()) / static_cast<double>(rows);
    const double of_weights = resident / (kRowDim * sizeof(float));
    report.rows.push_back({{"part", "memory"},
                           {"rows", rows},
                           {"dim", kRowDim},
                           {"resident_bytes_per_row", resident},
                           {"counted_bytes_per_row", counted},
                           {"of_weights", of_weights}});
    out << absl::StrFormat(
               "memory    %9d rows, dim %d: %.1f bytes per row resident, %.1f counted; %.2f of the weights\n", rows,
               kRowDim, resident, counted, of_weights)
        << std::flush;
    if (rows < kManyRows && rows != options.rows.back()) continue;
    report.ratios.push_back({absl::StrCat("bytes_of_weights_", RowsKey(rows)), of_weights, 1.6, true,
                             absl::StrFormat("memory of %g rows of dim 16, of the bare weights", 1.0 * rows)});
  }
  return absl::OkStatus();
}

}  // namespace ballast
