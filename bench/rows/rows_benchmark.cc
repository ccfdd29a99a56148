// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/bench_report.h"
#include "bench/rows/rows_parts.h"
#include "cli/command/command.h"
#include "cli/doctor/machine_facts.h"
#include "server/tables/range/row_layout.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast bench rows [flags]\n\n"
    "Measures rows of sparse tables under row-wise Adagrad. Parts:\n"
    "  table   pulls and pushes in process, on one core, by CPU time. The limit is our own kernel: random 64-byte\n"
    "          lines per second on 2 MiB pages, the best of 1, 4, 8, 16 and 32 loads in flight, divided by the lines "
    "of\n"
    "          a row (1.1 of the index, and the row's, which a push also writes back). Peers: absl::flat_hash_map and\n"
    "          libcuckoo, presized, with our rows and optimizer, above 10^6 rows only at dim 16. Batches are sorted.\n"
    "  server  pulls and pushes through the client to a real server, four in flight, dim 16. In turn with them: a\n"
    "          bare TCP stream, whose bytes are divided by the 72 of a row and its id, and MGET of redis-server, "
    "1,000\n"
    "          keys per command and 50 commands in a pipeline, on four connections, with at most 10^6 keys. The limit\n"
    "          is what client and server do with the rows, on four threads of one process without messages, and then\n"
    "          a bare stream.\n"
    "  memory  growth of this process's memory by a table of dim 16, divided by its bare weights.\n"
    "  growth  CPU time of pushes of new rows into a table that grows, and into one that has room for its index.\n"
    "  checkpoint  a real server saves all rows, and then an increment after 1 % of them have changed. How long the\n"
    "          pushes of 1,000 rows take meanwhile, of which one is in flight, and the size of the files.\n"
    "Above 10^6 rows, tables of more than 16 weights per row have fewer rows, so that they take about the same "
    "memory.\n"
    "A table for which the machine does not have the memory is left out, and a note says so.\n\n";

constexpr uint64_t kLargeRows = 100'000'000;

struct Part {
  const char* name;
  absl::Status (*measure)(const RowsOptions& options, BenchReport& report, std::ostream& out);
};
constexpr Part kParts[] = {{"table", MeasureTables},
                           {"server", MeasureServer},
                           {"memory", MeasureMemory},
                           {"growth", MeasureGrowth},
                           {"checkpoint", MeasureCheckpoint}};

std::vector<std::string> PartNames() {
  std::vector<std::string> names;
  for (const Part& part : kParts) names.emplace_back(part.name);
  return names;
}

std::vector<FlagSpec> Flags() {
  return {
      {"only", "LIST", absl::StrCat("Parts to run (", absl::StrJoin(PartNames(), ","), ").")},
      {"rows", "LIST", "Rows of the tables, at dim 16 (100000,32000000)."},
      {"large", "", "Also tables of 10^8 rows, which take 10 GB."},
      {"dims", "LIST", "Weights per row of the part table (8,16,32,64,128)."},
      {"ids", "N", "Distinct ids of a call, 1 to 1000000, at most half a table's rows (50000)."},
      {"seconds", "S", "Seconds for each measurement, 0.001 to 600 (1)."},
  };
}

absl::StatusOr<BenchReport> Run(const RowsOptions& options, const std::vector<std::string>& names, std::ostream& out) {
  BenchReport report;
  report.benchmark = "rows";
  report.settings = {{"parts", names},     {"rows", options.rows},       {"dims", options.dims},
                     {"ids", options.ids}, {"seconds", options.seconds}, {"optimizer", "row_wise_adagrad"}};
  for (const Part& part : kParts) {
    if (std::find(names.begin(), names.end(), part.name) == names.end()) continue;
    if (absl::Status status = part.measure(options, report, out); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("part ", part.name, ": ", status.message()));
    }
  }
  return report;
}

}  // namespace

v1::TableSpec RowsTable() {
  v1::TableSpec spec;
  spec.set_id(kRowsTable);
  spec.set_name("rows");
  spec.set_dim(kRowDim);
  spec.mutable_optimizer()->mutable_row_wise_adagrad()->set_learning_rate(0.01f);
  return spec;
}

uint64_t RowsAtDim(uint64_t rows, int dim) {
  if (rows <= 1'000'000 || dim <= kRowDim) return rows;
  return rows * kRowDim / dim;
}

std::string RowsKey(uint64_t rows) { return absl::StrCat(rows, "_rows"); }

bool HasMemoryFor(uint64_t rows, int dim, BenchReport& report) {
  // The largest index is that of a map that has just doubled.
  constexpr uint64_t kIndexBytes = 40;
  constexpr uint64_t kBesides = uint64_t{256} << 20;
  const uint64_t needed = rows * (RowLayout(dim, 1).bytes() + kIndexBytes) + kBesides;
  const uint64_t available = ProbeMemory().available_bytes;
  if (needed <= available) return true;
  report.notes.push_back(absl::StrFormat("not measured: %d rows of dim %d may need %.1f GB, and %.1f GB are available",
                                         rows, dim, needed / 1e9, available / 1e9));
  return false;
}

CommandResult RowsCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const auto parse = [&](const Arguments& arguments) {
    const auto names = GetNames(arguments, "only", PartNames());
    auto rows = GetCounts(arguments, "rows", "100000,32000000", 1'000'000'000);
    if (rows.ok() && arguments.Has("large")) rows->push_back(kLargeRows);
    const auto dims = GetCounts(arguments, "dims", "8,16,32,64,128", 4096);
    const auto ids = arguments.GetInt("ids", 50'000, 1, 1'000'000);
    const auto seconds = arguments.GetNumber("seconds", 1, 0.001, 600);
    return RunUnless({names.status(), rows.status(), dims.status(), ids.status(), seconds.status()}, [=, &out] {
      return Run({{rows->begin(), rows->end()}, *dims, static_cast<size_t>(*ids), *seconds}, *names, out);
    });
  };
  return RunBenchmark(kUsage, Flags(), args, parse, out, err);
}

}  // namespace ballast
