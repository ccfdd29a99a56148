// SPDX-License-Identifier: Apache-2.0
// The long form of the faults on real servers: runs each scenario for its share of the time, prints one JSON object.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/program/env_flags.h"
#include "common/text/json_fields.h"
#include "tests/fault/scenarios.h"

ABSL_FLAG(double, seconds, 60, "Time of all scenarios together, in seconds.");
ABSL_FLAG(std::string, server, "", "Path of ballast_server.");
ABSL_FLAG(std::string, worker, "", "Path of ballast_worker, for scenarios of whole jobs.");
ABSL_FLAG(std::string, ballast, "", "Path of ballast, for some scenarios of whole jobs.");
ABSL_FLAG(std::string, slow_disk_server, "", "Path of slow_disk_server, for the scenario slow_disk.");
ABSL_FLAG(std::string, counting_worker, "", "Path of counting_worker_main, for the scenarios of tables.");
ABSL_FLAG(std::string, scenarios, "", "Names of scenarios, separated by commas; empty: all that may run together.");
ABSL_FLAG(std::string, state_dir, "",
          "Directory for the state of servers that are killed; empty: the system's directory for temporary files.");
ABSL_FLAG(uint64_t, seed, 1, "Seed of all random choices.");

namespace ballast {
namespace {

constexpr char kUsage[] =
    "soak: injects faults into real servers, counts lost pushes and prints one JSON object. Exits with 1 if a push\n"
    "was lost or applied twice, or if anything hung.\n\n"
    "  soak --server bazel-bin/server/ballast_server --seconds 300";

int Fail(absl::string_view message) {
  std::cerr << "error: " << message << std::endl;
  return 2;
}

// Returns the scenarios that --scenarios names; INVALID_ARGUMENT if it names an unknown one.
absl::StatusOr<std::vector<Scenario>> Wanted(const SoakPlace& place) {
  const std::vector<Scenario> all = AllScenarios(place);
  const std::string text = absl::GetFlag(FLAGS_scenarios);
  std::vector<Scenario> wanted;
  if (text.empty()) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(wanted), [](const Scenario& one) { return one.share > 0; });
    return wanted;
  }
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const Scenario& one) { return one.name == name; });
    if (found == all.end()) {
      const auto names = absl::StrJoin(all, ", ", [](std::string* out, const Scenario& one) { *out += one.name; });
      return absl::InvalidArgumentError(absl::StrCat("--scenarios: got \"", name, "\", want some of ", names));
    }
    wanted.push_back(*found);
    if (found->share > 0) continue;
    wanted.back().share = 1;
    if (text.find(',') == std::string::npos) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--scenarios: got \"", name, "\" with other scenarios, want it alone"));
  }
  return wanted;
}

int Soak() {
  const double seconds = absl::GetFlag(FLAGS_seconds);
  if (!(seconds >= 1 && seconds <= 1e6)) return Fail(absl::StrCat("--seconds: got ", seconds, ", want 1 to 1000000"));
  if (!std::filesystem::is_regular_file(absl::GetFlag(FLAGS_server))) {
    return Fail(absl::StrCat("--server: got \"", absl::GetFlag(FLAGS_server), "\", want the path of ballast_server"));
  }
  SoakPlace place = {.server = absl::GetFlag(FLAGS_server),
                     .worker = absl::GetFlag(FLAGS_worker),
                     .ballast = absl::GetFlag(FLAGS_ballast),
                     .slow_disk_server = absl::GetFlag(FLAGS_slow_disk_server),
                     .counting_worker = absl::GetFlag(FLAGS_counting_worker),
                     .folder = absl::GetFlag(FLAGS_state_dir)};
  if (place.folder.empty()) place.folder = std::filesystem::temp_directory_path().string();
  const absl::StatusOr<std::vector<Scenario>> wanted = Wanted(place);
  if (!wanted.ok()) return Fail(wanted.status().message());
  double shares = 0;
  for (const Scenario& scenario : *wanted) shares += scenario.share;

  FaultCounts all;
  bool good = true;
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  for (const Scenario& scenario : *wanted) {
    const absl::Duration time = absl::Seconds(seconds * scenario.share / shares);
    std::cerr << "soak: " << scenario.name << " for " << absl::FormatDuration(absl::Trunc(time, absl::Seconds(1)))
              << std::endl;
    const absl::StatusOr<Outcome> outcome = scenario.run(time, absl::GetFlag(FLAGS_seed));
    nlohmann::ordered_json run;
    run["scenario"] = scenario.name;
    if (outcome.ok()) {
      all.Add(outcome->counts);
      good = good && outcome->good;
      run["good"] = outcome->good;
      if (outcome->counts.pushes_acknowledged > 0) run.update(outcome->counts.ToJson());
      run.update(outcome->figures);
    } else {
      good = false;
      run["good"] = false;
      run["error"] = std::string(outcome.status().message());
    }
    std::cerr << "soak: " << JsonLine(run) << std::endl;
    runs.push_back(std::move(run));
  }
  nlohmann::ordered_json json = all.ToJson();
  json["good"] = good;
  json["scenarios"] = std::move(runs);
  std::cout << JsonLine(json) << std::endl;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const absl::Status parsed = ballast::ParseFlags(argc, argv, ballast::kUsage,
                                                  {"seconds", "server", "worker", "ballast", "slow_disk_server",
                                                   "counting_worker", "scenarios", "state_dir", "seed"});
  if (!parsed.ok()) return ballast::Fail(parsed.message());
  return ballast::Soak();
}
