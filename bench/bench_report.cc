// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_report.h"

#include <stdlib.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/doctor/machine_facts.h"
#include "common/program/version.h"

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

}  // namespace ballast
