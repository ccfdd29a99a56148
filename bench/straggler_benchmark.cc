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
    "usage: ballast bench straggler [flags]\n\n"
    "Runs four workers in each mode; the last one takes five times as long for a step. Then runs the three fast\n"
    "ones alone in the same mode. `kept` is the steps per second of the three fast workers with the slow one,\n"
    "divided by those without it. The computation of a step is a timed wait; the exchange (a push-pull of 64 Ki\n"
    "elements) is real.\n\n"
    "A bound cannot let fast workers run ahead forever: they gain four steps in every five, and after about 5/4 of\n"
    "the bound they run at the slow worker's speed, a fifth of theirs. So bounded is measured twice: with a bound\n"
    "that the run does not reach, the cost of a temporarily slow worker; and with a bound (--staleness) that it\n"
    "reaches, the cost of a permanently slow worker.\n\n";

constexpr int kWorkers = 4;
constexpr double kSlowdown = 5;

std::vector<FlagSpec> Flags() {
  return {
      {"modes", "LIST", "Modes, from sync,async,bounded,quorum,local_sgd (all)."},
      {"staleness", "N", "Bound that the run reaches, 1 to 100 (4)."},
      {"compute-ms", "MS", "Milliseconds of computation per step of the fast workers, 1 to 10000 (50)."},
      {"seconds", "S", "Seconds for each measurement, 0.1 to 600 (6)."},
  };
}

struct Options {
  std::vector<std::string> modes;
  int staleness = 0;
  double compute_ms = 0;
  double seconds = 0;
};

// A line of the table.
struct Case {
  std::string label;
  // Name in JSON.
  std::string name;
  size_t mode;
  // Staleness bound of bounded.
  int staleness;
  // Target of `kept`; 0: none.
  double wanted;
};

std::vector<Case> Cases(const Options& options) {
  // More steps than any worker can make.
  const int unreached = static_cast<int>(options.seconds * 1000 / options.compute_ms) + 1;
  const std::vector<Case> all = {
      {"sync", "sync", 0, 0, 0},
      {"async", "async", 1, 0, 0.95},
      {absl::StrCat("bounded(", unreached, ")"), "bounded", 2, unreached, 0.95},
      {absl::StrCat("bounded(", options.staleness, "), at it"), "bounded_at_its_bound", 2, options.staleness, 0},
      {"quorum 3 of 4", "quorum", 3, 0, 0.9},
      {"local_sgd", "local_sgd", 4, 0, 0},
  };
  std::vector<Case> chosen;
  for (const Case& one : all) {
    const std::string mode = ModeNames()[one.mode];
    if (std::find(options.modes.begin(), options.modes.end(), mode) != options.modes.end()) chosen.push_back(one);
  }
  return chosen;
}

absl::StatusOr<BenchReport> Run(const Options& options, std::ostream& out) {
  BenchReport report;
  report.benchmark = "straggler";
  report.settings = {
      {"workers", kWorkers}, {"slowdown", kSlowdown}, {"compute_ms", options.compute_ms}, {"seconds", options.seconds}};
  const absl::Duration compute = absl::Milliseconds(options.compute_ms);
  std::vector<absl::Duration> all(kWorkers, compute);
  all.back() = compute * kSlowdown;
  out << absl::StrFormat("%-17s %13s %13s %6s %12s %14s %15s %7s\n", "mode", "fast, steps/s", "3 fast alone", "kept",
                         "slow, steps/s", "mean staleness", "max staleness", "unused");
  for (const Case& one : Cases(options)) {
    // Both runs use the same mode, so the quorum of three is all three workers.
    const SimulatedMode mode = AllModes(kWorkers, one.staleness)[one.mode];
    const auto alone = Simulate(mode, std::vector<absl::Duration>(kWorkers - 1, compute), options.seconds);
    if (!alone.ok()) return alone.status();
    const auto together = Simulate(mode, all, options.seconds);
    if (!together.ok()) return together.status();
    double mean = 0, pushes = 0, dropped = 0;
    uint64_t most = 0;
    for (const SimulatedWorker& worker : *together) {
      mean += worker.mean_staleness * static_cast<double>(worker.pushes - worker.dropped);
      pushes += static_cast<double>(worker.pushes);
      dropped += static_cast<double>(worker.dropped);
      most = std::max(most, worker.max_staleness);
    }
    if (pushes > dropped) mean /= pushes - dropped;
    const double slow = together->back().steps_per_second;
    const double fast = TotalRate(*together) - slow;
    const double limit = TotalRate(*alone);
    const double kept = fast / limit;
    report.rows.push_back({{"mode", one.name},
                           {"bound", one.mode == 2 ? Json(one.staleness) : Json()},
                           {"fast_steps_per_second", fast},
                           {"limit_steps_per_second", limit},
                           {"kept", kept},
                           {"slow_steps_per_second", slow},
                           {"mean_staleness", mean},
                           {"max_staleness", most},
                           {"unused_share", pushes > 0 ? dropped / pushes : 0}});
    out << absl::StrFormat("%-17s %13.1f %13.1f %6.3f %12.2f %14.2f %15d %7.3f\n", one.label, fast, limit, kept, slow,
                           mean, most, pushes > 0 ? dropped / pushes : 0)
        << std::flush;
    if (one.wanted == 0) continue;
    report.ratios.push_back({absl::StrCat(one.name, "_kept"), kept, one.wanted, false,
                             absl::StrCat(one.label, ", relative to the three fast workers alone")});
  }
  report.notes.push_back("a bound that is reached slows every worker to the slowest worker's speed; see --help");
  return report;
}

}  // namespace

CommandResult StragglerCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const auto parse = [&](const Arguments& arguments) {
    const auto modes = GetNames(arguments, "modes", ModeNames());
    const auto staleness = arguments.GetInt("staleness", 4, 1, 100);
    const auto compute = arguments.GetNumber("compute-ms", 50, 1, 10000);
    const auto seconds = arguments.GetNumber("seconds", 6, 0.1, 600);
    return RunUnless({modes.status(), staleness.status(), compute.status(), seconds.status()}, [=, &out] {
      return Run({*modes, *staleness, *compute, *seconds}, out);
    });
  };
  return RunBenchmark(kUsage, Flags(), args, parse, out, err);
}

}  // namespace ballast
