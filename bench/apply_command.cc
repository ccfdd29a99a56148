// SPDX-License-Identifier: Apache-2.0
#include "bench/apply_command.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/bench_flags.h"
#include "bench/bench_report.h"
#include "bench/micro/apply_benchmark.h"
#include "cli/command/command.h"
#include "common/program/arguments.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast bench apply [flags]\n\n"
    "Applies each optimizer to a model in memory with one thread. GB/s counts memory traffic: each array that an\n"
    "update reads, and each that it writes, counts once. The limit is a loop that reads and writes the same arrays\n"
    "without computing, run in turn with the optimizer.\n\n";

constexpr double kWanted = 0.8;
constexpr int kMiElements = 1 << 20;

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"mi-elements", "N", "Elements of the model in Mi (1,048,576), 1 to 1024 (32)."},
      {"seconds", "S", "Seconds for each optimizer, 0.01 to 600 (2)."},
      {"json", "", "Print one JSON object as the last line."},
  };
  return *flags;
}

absl::StatusOr<BenchReport> Run(int mi_elements, double seconds, std::ostream& out) {
  const uint64_t elements = uint64_t{kMiElements} * mi_elements;
  const absl::StatusOr<std::vector<ApplyResult>> results = RunApplyBenchmark({elements, seconds});
  if (!results.ok()) return results.status();
  BenchReport report;
  report.benchmark = "apply";
  report.settings = {{"elements", elements}, {"threads", 1}, {"seconds", seconds}};
  out << absl::StrFormat("%-10s %8s %11s %6s\n", "optimizer", "GB/s", "limit GB/s", "of it");
  double least = results->empty() ? 0 : results->front().ratio;
  for (const ApplyResult& result : *results) {
    report.rows.push_back({{"optimizer", result.optimizer},
                           {"gb_per_second", result.gb_per_second},
                           {"limit_gb_per_second", result.limit_gb_per_second},
                           {"of_limit", result.ratio}});
    out << absl::StrFormat("%-10s %8.2f %11.2f %6.3f\n", result.optimizer, result.gb_per_second,
                           result.limit_gb_per_second, result.ratio);
    report.ratios.push_back({absl::StrCat(result.optimizer, "_of_limit"), result.ratio, kWanted, false,
                             absl::StrCat(result.optimizer, ", relative to a loop over the same arrays")});
    least = std::min(least, result.ratio);
  }
  report.ratios.push_back({"least_of_limit", least, kWanted, false, "slowest optimizer, relative to its loop"});
  return report;
}

}  // namespace

int ApplyCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  const absl::Status words = CheckNoWords(*arguments);
  const auto elements = arguments->GetInt("mi-elements", 32, 1, 1024);
  const auto seconds = GetNumber(*arguments, "seconds", 2, 0.01, 600);
  for (const absl::Status& status : {words, elements.status(), seconds.status()}) {
    if (!status.ok()) return Fail(err, status, kExitBadInput);
  }
  return Conclude(Run(*elements, *seconds, out), arguments->Has("json"), out, err);
}

}  // namespace ballast
