// SPDX-License-Identifier: Apache-2.0
// The long form of the faults on real servers: each scenario for its share of the time, then one JSON object of counts.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/env_flags.h"
#include "common/run/json_fields.h"
#include "tests/fault/durability/checkpoint_death.h"
#include "tests/fault/durability/damage.h"
#include "tests/fault/durability/lost_disk.h"
#include "tests/fault/network/two_hosts.h"
#include "tests/fault/oracle/fault_run.h"
#include "tests/fault/overload/overload.h"

ABSL_FLAG(double, seconds, 60, "Of all scenarios together.");
ABSL_FLAG(std::string, server, "", "Path of ballast_server.");
ABSL_FLAG(std::string, scenarios, "", "Names, separated by commas; empty: all that may run together.");
ABSL_FLAG(std::string, state_dir, "",
          "Folder for the state of servers that are killed; the system's own for what is temporary.");
ABSL_FLAG(uint64_t, seed, 1, "Of what is random.");

namespace ballast {
namespace {

constexpr char kUsage[] =
    "soak: makes faults on real servers and counts what is lost; prints one JSON object. Ends with 1 where anything "
    "was\n"
    "lost, applied twice or hung.\n\n"
    "  soak --server bazel-bin/server/ballast_server --seconds 300";

v1::ConsistencyPolicy Policy(const std::string& name) {
  v1::ConsistencyPolicy policy;
  if (name == "async") policy.mutable_async();
  if (name == "bounded") policy.mutable_bounded()->set_staleness(2);
  if (name == "sync") policy.mutable_sync()->set_deterministic(true);
  return policy;
}

// What a scenario brings: counts, and figures of its own.
struct Outcome {
  FaultCounts counts;
  nlohmann::ordered_json figures = nlohmann::ordered_json::object();
  bool good = true;
};

struct Scenario {
  std::string name;
  // Of the whole time; 0: run only alone.
  double share = 0;
  std::function<absl::StatusOr<Outcome>(absl::Duration time, uint64_t seed)> run;
};

FaultRunOptions Base(absl::Duration time, uint64_t seed) {
  FaultRunOptions options;
  options.server = absl::GetFlag(FLAGS_server);
  options.pushes = 1000000000;
  options.time = time;
  options.seed = seed;
  return options;
}

absl::StatusOr<Outcome> Faults(const FaultRunOptions& options) {
  const absl::StatusOr<FaultCounts> counts = RunFaults(options);
  if (!counts.ok()) return counts.status();
  Outcome outcome;
  outcome.counts = *counts;
  outcome.good =
      counts->pushes_lost + counts->pushes_duplicated + counts->wrong_weights + counts->wrong_pulls + counts->hangs ==
      0;
  return outcome;
}

absl::StatusOr<Outcome> LostReplies(const std::string& policy, uint32_t workers, absl::Duration time, uint64_t seed) {
  FaultRunOptions options = Base(time, seed);
  options.policy = Policy(policy);
  options.workers = workers;
  options.plan = {.drop_replies = 0.1, .silence = absl::Milliseconds(50)};
  return Faults(options);
}

absl::StatusOr<Outcome> Cuts(absl::Duration time, uint64_t seed) {
  FaultRunOptions options = Base(time, seed);
  options.policy = Policy("async");
  options.plan = {.cut = 0.02, .delay = absl::Milliseconds(3)};
  return Faults(options);
}

// Through the proxies, or by pulling a cable where there is one.
absl::StatusOr<Outcome> Partitions(const TwoHosts* hosts, absl::Duration time, uint64_t seed) {
  FaultRunOptions options = Base(time, seed);
  options.policy = Policy("async");
  options.hosts = hosts;
  // The client's own.
  options.rpc_timeout = ClientOptions().rpc_timeout;
  options.partition_every = absl::Seconds(1);
  // As long as the figure has it, where there is time for it.
  options.partition_for = std::min(absl::Seconds(30), time / 4);
  options.patience = absl::Seconds(60);
  return Faults(options);
}

// Moves this thread to another network for good, so it is a scenario for a process of its own.
absl::StatusOr<Outcome> PulledCable(absl::Duration time, uint64_t seed) {
  static const absl::StatusOr<std::unique_ptr<TwoHosts>>* const hosts =
      new absl::StatusOr<std::unique_ptr<TwoHosts>>(TwoHosts::Create());
  if (hosts->ok()) return Partitions((*hosts)->get(), time, seed);
  Outcome outcome;
  outcome.figures["skipped"] = std::string(hosts->status().message());
  return outcome;
}

// A folder for one run's state, gone with it.
class StateFolder {
 public:
  explicit StateFolder(const std::string& name)
      : path_(absl::StrCat(absl::GetFlag(FLAGS_state_dir).empty() ? std::filesystem::temp_directory_path().string()
                                                                  : absl::GetFlag(FLAGS_state_dir),
                           "/ballast-soak-", getpid(), "-", name)) {}
  StateFolder(const StateFolder&) = delete;
  ~StateFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

struct KillPlan {
  v1::Durability::Mode durability = v1::Durability::WAL;
  std::string policy = "async";
  // Of state, on each of two servers.
  uint32_t idle_mib = 0;
  double drop_replies = 0;
  absl::Duration kill_every = absl::Milliseconds(200);
};

absl::StatusOr<Outcome> Kills(const KillPlan& plan, absl::Duration time, uint64_t seed) {
  const StateFolder folder(absl::StrCat(plan.policy, "-", v1::Durability::Mode_Name(plan.durability)));
  FaultRunOptions options = Base(time, seed);
  options.policy = Policy(plan.policy);
  options.durability = plan.durability;
  options.state_folder = folder.path();
  options.idle_mib = 2 * plan.idle_mib;
  options.kill_every = plan.kill_every;
  options.plan = {.drop_replies = plan.drop_replies, .silence = absl::Milliseconds(50)};
  return Faults(options);
}

absl::StatusOr<Outcome> LostDisks(v1::Durability::Mode mode, absl::Duration time, uint64_t seed) {
  const StateFolder folder("lost-disk");
  const absl::Time end = absl::Now() + time;
  LostDiskCounts all;
  // A few rounds at a time, until the time is over.
  for (uint64_t part = 0; part == 0 || absl::Now() < end; ++part) {
    LostDiskOptions options;
    options.folder = folder.path();
    options.mode = mode;
    options.rounds = 5;
    options.seed = seed * 1000003 + part;
    if (mode == v1::Durability::WAL) options.most_pushes = 60000;
    const absl::StatusOr<LostDiskCounts> counts = LoseDisks(options);
    if (!counts.ok()) return counts.status();
    all.rounds += counts->rounds;
    all.acknowledged += counts->acknowledged;
    all.lost += counts->lost;
    all.duplicated += counts->duplicated;
    all.oldest_lost_seconds = std::max(all.oldest_lost_seconds, counts->oldest_lost_seconds);
  }
  Outcome outcome;
  outcome.figures["rounds"] = all.rounds;
  outcome.figures["acknowledged"] = all.acknowledged;
  outcome.figures["lost"] = all.lost;
  outcome.figures["duplicated"] = all.duplicated;
  outcome.figures["oldest_lost_seconds"] = all.oldest_lost_seconds;
  outcome.good = all.duplicated == 0 && (mode == v1::Durability::WAL ? all.oldest_lost_seconds <= 1 : all.lost == 0);
  return outcome;
}

absl::StatusOr<Outcome> Damage(absl::Duration time, uint64_t seed) {
  const StateFolder folder("damage");
  const absl::Time end = absl::Now() + time;
  DamageCounts all;
  for (uint64_t part = 0; part == 0 || absl::Now() < end; ++part) {
    const absl::StatusOr<DamageCounts> counts = DamageFolders({.folder = folder.path(), .seed = seed * 1000003 + part});
    if (!counts.ok()) return counts.status();
    all.bit_flips += counts->bit_flips;
    all.truncations += counts->truncations;
    all.refused += counts->refused;
    all.cut += counts->cut;
    all.unharmed += counts->unharmed;
    all.silent += counts->silent;
    if (all.first_silent.empty()) all.first_silent = counts->first_silent;
  }
  Outcome outcome;
  outcome.figures["bit_flips"] = all.bit_flips;
  outcome.figures["truncations"] = all.truncations;
  outcome.figures["refused"] = all.refused;
  outcome.figures["cut"] = all.cut;
  outcome.figures["unharmed"] = all.unharmed;
  outcome.figures["silent"] = all.silent;
  if (all.silent > 0) outcome.figures["first_silent"] = all.first_silent;
  outcome.good = all.silent == 0;
  return outcome;
}

absl::StatusOr<Outcome> Checkpoints(absl::Duration time, uint64_t seed) {
  const StateFolder folder("checkpoints");
  const absl::Time end = absl::Now() + time;
  CheckpointDeathCounts all;
  for (uint64_t part = 0; part == 0 || absl::Now() < end; ++part) {
    const absl::StatusOr<CheckpointDeathCounts> counts =
        DieInCheckpoints({.folder = folder.path(), .seed = seed * 1000003 + part});
    if (!counts.ok()) return counts.status();
    all.deaths += counts->deaths;
    all.old_loaded += counts->old_loaded;
    all.new_loaded += counts->new_loaded;
    all.bit_flips += counts->bit_flips;
    all.truncations += counts->truncations;
    all.refused += counts->refused;
    all.wrong += counts->wrong;
    if (all.first_wrong.empty()) all.first_wrong = counts->first_wrong;
  }
  Outcome outcome;
  outcome.figures["deaths"] = all.deaths;
  outcome.figures["old_loaded"] = all.old_loaded;
  outcome.figures["new_loaded"] = all.new_loaded;
  outcome.figures["bit_flips"] = all.bit_flips;
  outcome.figures["truncations"] = all.truncations;
  outcome.figures["refused"] = all.refused;
  outcome.figures["wrong"] = all.wrong;
  if (all.wrong > 0) outcome.figures["first_wrong"] = all.first_wrong;
  outcome.good = all.wrong == 0;
  return outcome;
}

absl::StatusOr<Outcome> Overload(absl::Duration time, uint64_t) {
  const absl::StatusOr<OverloadCounts> counts = RunOverload({.server = absl::GetFlag(FLAGS_server), .time = time});
  Outcome outcome;
  if (absl::IsUnavailable(counts.status())) {
    outcome.figures["skipped"] = std::string(counts.status().message());
    return outcome;
  }
  if (!counts.ok()) return counts.status();
  outcome.figures["limit_bytes"] = counts->limit_bytes;
  outcome.figures["peak_bytes"] = counts->peak_bytes;
  outcome.figures["group_peak_bytes"] = counts->group_peak_bytes;
  outcome.figures["refused"] = counts->refused;
  outcome.figures["calls"] = counts->calls;
  outcome.figures["killed"] = counts->killed;
  outcome.good = !counts->killed && counts->peak_bytes <= counts->limit_bytes && counts->refused > 0;
  return outcome;
}

std::vector<Scenario> Scenarios() {
  using namespace std::placeholders;
  const auto kills = [](KillPlan plan) { return std::bind(Kills, plan, _1, _2); };
  return {
      {"lost_replies_async", 0.15, std::bind(LostReplies, "async", 8, _1, _2)},
      {"lost_replies_bounded", 0.05, std::bind(LostReplies, "bounded", 4, _1, _2)},
      {"lost_replies_sync", 0.05, std::bind(LostReplies, "sync", 4, _1, _2)},
      {"cuts_and_delays", 0.05, Cuts},
      {"partitions", 0.1, std::bind(Partitions, nullptr, _1, _2)},
      {"pulled_cable", 0, PulledCable},
      {"overload", 0.05, Overload},
      {"kills_wal", 0.1, kills({.durability = v1::Durability::WAL})},
      {"kills_wal_sync", 0.1, kills({.durability = v1::Durability::WAL_SYNC})},
      {"kills_sync_policy", 0.05, kills({.durability = v1::Durability::WAL, .policy = "sync"})},
      {"kills_and_lost_replies", 0.1, kills({.durability = v1::Durability::WAL, .drop_replies = 0.1})},
      {"kills_256_mib", 0.1,
       kills({.durability = v1::Durability::WAL, .idle_mib = 256, .kill_every = absl::Seconds(1)})},
      {"lost_disk_wal", 0.03, std::bind(LostDisks, v1::Durability::WAL, _1, _2)},
      {"lost_disk_wal_sync", 0.03, std::bind(LostDisks, v1::Durability::WAL_SYNC, _1, _2)},
      {"damage", 0.04, Damage},
      {"checkpoints", 0.03, Checkpoints},
  };
}

nlohmann::ordered_json ToJson(const FaultCounts& counts) {
  nlohmann::ordered_json json;
  json["kills"] = counts.kills;
  json["restarts"] = counts.restarts;
  json["pushes_acknowledged"] = counts.pushes_acknowledged;
  json["pushes_lost"] = counts.pushes_lost;
  json["pushes_duplicated"] = counts.pushes_duplicated;
  json["wrong_weights"] = counts.wrong_weights;
  json["wrong_pulls"] = counts.wrong_pulls;
  json["retries"] = counts.retries;
  json["duplicates_refused"] = counts.duplicates_refused;
  json["replies_dropped"] = counts.replies_dropped;
  json["connections"] = counts.connections;
  json["partitions"] = counts.partitions;
  json["hangs"] = counts.hangs;
  json["recovery_seconds_p50"] = Quantile(counts.recovery_seconds, 0.5);
  json["recovery_seconds_p95"] = Quantile(counts.recovery_seconds, 0.95);
  json["recovery_seconds_max"] = Quantile(counts.recovery_seconds, 1);
  json["healing_seconds_p50"] = Quantile(counts.healing_seconds, 0.5);
  json["healing_seconds_p95"] = Quantile(counts.healing_seconds, 0.95);
  json["healing_seconds_max"] = Quantile(counts.healing_seconds, 1);
  json["resident_bytes_first"] = counts.resident_first;
  json["resident_bytes_last"] = counts.resident_last;
  json["descriptors_first"] = counts.descriptors_first;
  json["descriptors_last"] = counts.descriptors_last;
  return json;
}

int Fail(absl::string_view message) {
  std::cerr << "error: " << message << std::endl;
  return 2;
}

// Those that --scenarios names; INVALID_ARGUMENT where it names another.
absl::StatusOr<std::vector<Scenario>> Wanted() {
  const std::vector<Scenario> all = Scenarios();
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
      return absl::InvalidArgumentError(absl::StrCat("--scenarios: got \"", name, "\", want of ", names));
    }
    wanted.push_back(*found);
    if (found->share > 0) continue;
    wanted.back().share = 1;
    if (text.find(',') == std::string::npos) continue;
    return absl::InvalidArgumentError(absl::StrCat("--scenarios: got \"", name, "\" with others, want it alone"));
  }
  return wanted;
}

int Soak() {
  const double seconds = absl::GetFlag(FLAGS_seconds);
  if (!(seconds >= 1 && seconds <= 1e6)) return Fail(absl::StrCat("--seconds: got ", seconds, ", want 1 to 1000000"));
  if (!std::filesystem::is_regular_file(absl::GetFlag(FLAGS_server))) {
    return Fail(absl::StrCat("--server: got \"", absl::GetFlag(FLAGS_server), "\", want the path of ballast_server"));
  }
  const absl::StatusOr<std::vector<Scenario>> wanted = Wanted();
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
      if (outcome->counts.pushes_acknowledged > 0) run.update(ToJson(outcome->counts));
      run.update(outcome->figures);
    } else {
      good = false;
      run["good"] = false;
      run["error"] = std::string(outcome.status().message());
    }
    std::cerr << "soak: " << JsonLine(run) << std::endl;
    runs.push_back(std::move(run));
  }
  nlohmann::ordered_json json = ToJson(all);
  json["good"] = good;
  json["scenarios"] = std::move(runs);
  std::cout << JsonLine(json) << std::endl;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const absl::Status parsed =
      ballast::ParseFlags(argc, argv, ballast::kUsage, {"seconds", "server", "scenarios", "state_dir", "seed"});
  if (!parsed.ok()) return ballast::Fail(parsed.message());
  return ballast::Soak();
}
