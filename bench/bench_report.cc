// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_report.h"

#include <stdlib.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/command/command.h"
#include "cli/doctor/machine_facts.h"
#include "common/program/this_process.h"

namespace ballast {
namespace {

std::string Kernel() {
  utsname name = {};
  return uname(&name) == 0 ? absl::StrCat(name.sysname, " ", name.release) : "unknown";
}

// Load of the last minute: other programs that compute at the same time spoil a measurement.
double LoadAverage() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;

struct Unit {
  const char* name;
  uint64_t bytes;
};
constexpr Unit kUnits[] = {{"GiB", uint64_t{1} << 30}, {"MiB", uint64_t{1} << 20}, {"KiB", uint64_t{1} << 10}};

}  // namespace

void BenchReport::PrintConclusion(std::ostream& out) const {
  const CpuFacts cpu = ProbeCpu();
  out << absl::StrFormat("machine: %s, %d cores, %s, load average %.2f; ballast %s\n", cpu.model, cpu.cores, Kernel(),
                         LoadAverage(), kVersion);
  for (const Ratio& ratio : ratios) {
    out << absl::StrFormat("ratio: %-76s %7.3f, want %s %g%s\n", ratio.what, ratio.value,
                           ratio.at_most ? "at most" : "at least", ratio.wanted, ratio.reached() ? "" : "  (missed)");
  }
  for (const std::string& note : notes) out << "note: " << note << "\n";
}

std::string BenchReport::ToJson() const {
  const CpuFacts cpu = ProbeCpu();
  Json values = Json::object();
  Json wanted = Json::object();
  for (const Ratio& ratio : ratios) {
    values[ratio.name] = ratio.value;
    wanted[ratio.name] = {{ratio.at_most ? "at_most" : "at_least", ratio.wanted}, {"reached", ratio.reached()}};
  }
  const Json all = {{"benchmark", benchmark},
                    {"version", kVersion},
                    {"machine",
                     {{"cpu", cpu.model},
                      {"cores", cpu.cores},
                      {"kernel", Kernel()},
                      {"memory_bytes", ProbeMemory().total_bytes},
                      {"load_average", LoadAverage()}}},
                    {"settings", settings},
                    {"rows", rows},
                    {"ratios", values},
                    {"wanted", wanted},
                    {"notes", notes}};
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double Median(std::vector<double> figures) {
  if (figures.empty()) return 0;
  std::sort(figures.begin(), figures.end());
  const size_t middle = figures.size() / 2;
  return figures.size() % 2 == 1 ? figures[middle] : (figures[middle - 1] + figures[middle]) / 2;
}

double Percentile(std::vector<double> figures, double share) {
  if (figures.empty()) return 0;
  std::sort(figures.begin(), figures.end());
  const double rank = std::ceil(share * static_cast<double>(figures.size()));
  return figures[std::clamp<size_t>(static_cast<size_t>(rank), 1, figures.size()) - 1];
}

absl::StatusOr<std::vector<uint64_t>> GetSizes(const Arguments& arguments, absl::string_view flag,
                                               const std::string& otherwise) {
  std::vector<uint64_t> sizes;
  for (absl::string_view text : absl::StrSplit(arguments.Get(flag, otherwise), ',')) {
    absl::string_view digits = text;
    uint64_t unit = 1;
    for (const Unit& known : kUnits) {
      if (absl::ConsumeSuffix(&digits, known.name)) {
        unit = known.bytes;
        break;
      }
    }
    uint64_t number = 0;
    if (!absl::SimpleAtoi(digits, &number) || number == 0 || number > kMaxBytes / unit || number * unit % 4 != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "flag --%s: got \"%s\", want comma-separated sizes from 4 bytes to 1GiB, multiples of 4: 4KiB,1MiB", flag,
          text));
    }
    sizes.push_back(number * unit);
  }
  return sizes;
}

absl::StatusOr<std::vector<int>> GetCounts(const Arguments& arguments, absl::string_view flag,
                                           const std::string& otherwise, int most) {
  std::vector<int> counts;
  for (absl::string_view text : absl::StrSplit(arguments.Get(flag, otherwise), ',')) {
    int number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < 1 || number > most) {
      return absl::InvalidArgumentError(
          absl::StrFormat("flag --%s: got \"%s\", want comma-separated numbers from 1 to %d: 1,2,4", flag, text, most));
    }
    counts.push_back(number);
  }
  return counts;
}

absl::StatusOr<std::vector<std::string>> GetNames(const Arguments& arguments, absl::string_view flag,
                                                  const std::vector<std::string>& all) {
  if (!arguments.Has(flag)) return all;
  const std::vector<std::string> asked = absl::StrSplit(arguments.Get(flag, ""), ',');
  for (const std::string& name : asked) {
    if (std::find(all.begin(), all.end(), name) != all.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("flag --%s: got \"%s\", want any of %s", flag, name, absl::StrJoin(all, ",")));
  }
  std::vector<std::string> chosen;
  for (const std::string& name : all) {
    if (std::find(asked.begin(), asked.end(), name) != asked.end()) chosen.push_back(name);
  }
  return chosen;
}

std::string FormatSize(uint64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes >= unit.bytes && bytes % unit.bytes == 0) return absl::StrCat(bytes / unit.bytes, " ", unit.name);
  }
  return absl::StrCat(bytes, " B");
}

CommandResult Conclude(const absl::StatusOr<BenchReport>& report, bool json, std::ostream& out, std::ostream& err) {
  if (!report.ok()) return Fail(err, report.status(), kExitFailure);
  report->PrintConclusion(out);
  if (json) out << report->ToJson() << std::endl;
  return kExitSuccess;
}

CommandResult RunBenchmark(absl::string_view usage, std::vector<FlagSpec> flags, absl::Span<const std::string> args,
                           const std::function<absl::StatusOr<BenchRun>(const Arguments&)>& parse, std::ostream& out,
                           std::ostream& err) {
  flags.push_back({"json", "", "Print one JSON object as the last line."});
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(flags, args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << usage << DescribeFlags(flags);
    return kExitSuccess;
  }
  if (!arguments->positional().empty()) {
    const std::string error = absl::StrCat("unexpected word \"", arguments->positional()[0], "\"");
    return Fail(err, absl::InvalidArgumentError(error), kExitBadInput);
  }
  const absl::StatusOr<BenchRun> run = parse(*arguments);
  if (!run.ok()) return Fail(err, run.status(), kExitBadInput);
  return Conclude((*run)(), arguments->Has("json"), out, err);
}

absl::StatusOr<BenchRun> RunUnless(std::initializer_list<absl::Status> errors, BenchRun run) {
  for (const absl::Status& error : errors) {
    if (!error.ok()) return error;
  }
  return run;
}

}  // namespace ballast
