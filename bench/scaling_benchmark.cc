// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/bench_report.h"
#include "bench/simulation.h"
#include "cli/command/command.h"
#include "common/program/arguments.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast bench scaling [flags]\n\n"
    "Runs 1, 2, 4 and 8 workers against one server in each mode. The computation of a step is a timed wait; the\n"
    "exchange (a push-pull of 64 Ki elements) is real. Efficiency is the steps per second of N workers divided by\n"
    "N times those of one worker in the same mode. With a quorum (of N - 1) the last gradient of each step is not\n"
    "used: `unused` is the fraction of such gradients.\n\n";

constexpr double kWanted = 0.9;
constexpr int kStaleness = 4;

std::vector<FlagSpec> Flags() {
  return {
      {"workers", "LIST", "Numbers of workers; the first is the baseline for the others (1,2,4,8)."},
      {"modes", "LIST", "Modes, from sync,async,bounded,quorum,local_sgd (all)."},
      {"compute-ms", "MS", "Milliseconds of computation per step, 1 to 10000 (50)."},
      {"seconds", "S", "Seconds for each measurement, 0.1 to 600 (4)."},
  };
}

struct Options {
  std::vector<int> counts;
  std::vector<std::string> modes;
  double compute_ms = 0;
  double seconds = 0;
};

absl::StatusOr<BenchReport> Run(const Options& options, std::ostream& out) {
  BenchReport report;
  report.benchmark = "scaling";
  report.settings = {{"compute_ms", options.compute_ms}, {"seconds", options.seconds}};
  const absl::Duration compute = absl::Milliseconds(options.compute_ms);
  out << absl::StrFormat("%-10s %7s %9s %12s %10s %14s %7s\n", "mode", "workers", "steps/s", "N x the first",
                         "efficiency", "exchange share", "unused");
  for (size_t index = 0; index < ModeNames().size(); ++index) {
    const std::string name = ModeNames()[index];
    if (std::find(options.modes.begin(), options.modes.end(), name) == options.modes.end()) continue;
    double first = 0;
    for (int count : options.counts) {
      const SimulatedMode mode = AllModes(count, kStaleness)[index];
      const auto workers = Simulate(mode, std::vector<absl::Duration>(count, compute), options.seconds);
      if (!workers.ok()) return workers.status();
      const double rate = TotalRate(*workers);
      if (first == 0) first = rate / count;
      double exchange = 0, pushes = 0, dropped = 0;
      for (const SimulatedWorker& worker : *workers) {
        exchange += worker.exchange_share / count;
        pushes += static_cast<double>(worker.pushes);
        dropped += static_cast<double>(worker.dropped);
      }
      const double limit = first * count;
      const double unused = pushes > 0 ? dropped / pushes : 0;
      report.rows.push_back({{"mode", name},
                             {"workers", count},
                             {"steps_per_second", rate},
                             {"limit_steps_per_second", limit},
                             {"efficiency", rate / limit},
                             {"exchange_share", exchange},
                             {"unused_share", unused}});
      out << absl::StrFormat("%-10s %7d %9.1f %13.1f %10.3f %14.4f %7.3f\n", name, count, rate, limit, rate / limit,
                             exchange, unused)
          << std::flush;
      if (count != options.counts.back() || options.counts.size() == 1) continue;
      report.ratios.push_back(
          {absl::StrCat(name, "_efficiency_", count, "_workers"), rate / limit, kWanted, false,
           absl::StrFormat("%s with %d workers, relative to %d times one worker's rate", name, count, count)});
    }
  }
  return report;
}

}  // namespace

CommandResult ScalingCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const auto parse = [&](const Arguments& arguments) {
    const auto counts = GetCounts(arguments, "workers", "1,2,4,8", 64);
    const auto modes = GetNames(arguments, "modes", ModeNames());
    const auto compute = arguments.GetNumber("compute-ms", 50, 1, 10000);
    const auto seconds = arguments.GetNumber("seconds", 4, 0.1, 600);
    return RunUnless({counts.status(), modes.status(), compute.status(), seconds.status()}, [=, &out] {
      return Run({*counts, *modes, *compute, *seconds}, out);
    });
  };
  return RunBenchmark(kUsage, Flags(), args, parse, out, err);
}

}  // namespace ballast
