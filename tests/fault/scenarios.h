// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/fault/oracle/push_faults.h"

namespace ballast {

// Programs that scenarios run, and the directory for their files.
struct SoakPlace {
  // Paths of the programs; all but the server's may be empty for scenarios that do not need them.
  std::string server;
  std::string worker;
  std::string ballast;
  std::string slow_disk_server;
  std::string counting_worker;
  std::string folder;
};

// Result of a scenario: counts, and its own measurements.
struct Outcome {
  FaultCounts counts;
  nlohmann::ordered_json figures = nlohmann::ordered_json::object();
  bool good = true;
};

struct Scenario {
  std::string name;
  // Share of the whole time; 0: runs only by name.
  double share = 0;
  // An error is a failure of the test itself.
  std::function<absl::StatusOr<Outcome>(absl::Duration time, uint64_t seed)> run;
};

// Owns a directory for one run's state and removes it at the end.
class StateFolder {
 public:
  StateFolder(const SoakPlace& place, const std::string& name)
      : path_(absl::StrCat(place.folder, "/ballast-soak-", getpid(), "-", name)) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  StateFolder(const StateFolder&) = delete;
  ~StateFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// Repeats `run`, which returns StatusOr<Counts>, with another seed each time until the time is over; returns the
// sums.
template <typename Counts, typename Run>
absl::StatusOr<Counts> InParts(absl::Duration time, uint64_t seed, Run run) {
  const absl::Time end = absl::Now() + time;
  Counts all;
  for (uint64_t part = 0; part == 0 || absl::Now() < end; ++part) {
    const absl::StatusOr<Counts> counts = run(seed * 1000003 + part);
    if (!counts.ok()) return counts.status();
    all.Add(*counts);
  }
  return all;
}

// Converts counts that have good() and ToJson().
template <typename Counts>
absl::StatusOr<Outcome> OutcomeOf(const absl::StatusOr<Counts>& counts) {
  if (!counts.ok()) return counts.status();
  Outcome outcome;
  outcome.figures = counts->ToJson();
  outcome.good = counts->good();
  return outcome;
}

// The outcome of a scenario that cannot run on this machine, with the reason.
inline Outcome Skipped(const absl::Status& why) {
  Outcome outcome;
  outcome.figures["skipped"] = std::string(why.message());
  return outcome;
}

// Every scenario of the oracle's pushes, of tables, of disks, of whole jobs, of attackers and of control calls.
std::vector<Scenario> AllScenarios(const SoakPlace& place);

}  // namespace ballast
