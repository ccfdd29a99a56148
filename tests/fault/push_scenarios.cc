// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/push_scenarios.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "client/client.h"
#include "tests/fault/network/two_hosts.h"
#include "tests/fault/oracle/big_shard.h"
#include "tests/fault/oracle/fault_run.h"
#include "tests/fault/oracle/old_incarnation.h"
#include "tests/fault/overload/overload.h"

namespace ballast {
namespace {

v1::ConsistencyPolicy Policy(const std::string& name) {
  v1::ConsistencyPolicy policy;
  if (name == "async") policy.mutable_async();
  if (name == "bounded") policy.mutable_bounded()->set_staleness(2);
  if (name == "sync") policy.mutable_sync()->set_deterministic(true);
  return policy;
}

FaultRunOptions Base(const SoakPlace& place, const std::string& policy, absl::Duration time, uint64_t seed) {
  FaultRunOptions options;
  options.server = place.server;
  options.policy = Policy(policy);
  options.pushes = 1000000000;
  options.time = time;
  options.seed = seed;
  return options;
}

absl::StatusOr<Outcome> ValidationErrors(const FaultRunOptions& options) {
  const absl::StatusOr<FaultCounts> counts = RunFaults(options);
  if (!counts.ok()) return counts.status();
  Outcome outcome;
  outcome.counts = *counts;
  outcome.good = counts->good();
  return outcome;
}

Scenario LostReplies(const SoakPlace& place, const std::string& policy, uint32_t workers, double share) {
  return {"lost_replies_" + policy, share, [=](absl::Duration time, uint64_t seed) {
            FaultRunOptions options = Base(place, policy, time, seed);
            options.workers = workers;
            options.plan = {.drop_replies = 0.1, .silence = absl::Milliseconds(50)};
            return ValidationErrors(options);
          }};
}

absl::StatusOr<Outcome> Cuts(const SoakPlace& place, absl::Duration time, uint64_t seed) {
  FaultRunOptions options = Base(place, "async", time, seed);
  options.plan = {.cut = 0.02, .delay = absl::Milliseconds(3)};
  return ValidationErrors(options);
}

// Partitions by the proxies, or by a pulled cable if `hosts` is set.
absl::StatusOr<Outcome> Partitions(const SoakPlace& place, const TwoHosts* hosts, absl::Duration time, uint64_t seed) {
  FaultRunOptions options = Base(place, "async", time, seed);
  options.hosts = hosts;
  // The client's own default.
  options.rpc_timeout = ClientOptions().rpc_timeout;
  options.partition_every = absl::Seconds(1);
  // The full partition of 30 s, if there is time for it.
  options.partition_for = std::min(absl::Seconds(30), time / 4);
  options.timeout = absl::Seconds(60);
  return ValidationErrors(options);
}

// Moves this thread to another network for good, so this scenario needs its own process.
absl::StatusOr<Outcome> PulledCable(const SoakPlace& place, absl::Duration time, uint64_t seed) {
  static const absl::StatusOr<std::unique_ptr<TwoHosts>>* const hosts =
      new absl::StatusOr<std::unique_ptr<TwoHosts>>(TwoHosts::Create());
  if (!hosts->ok()) return Skipped(hosts->status());
  return Partitions(place, (*hosts)->get(), time, seed);
}

struct KillPlan {
  std::string name;
  double share = 0;
  v1::Durability::Mode durability = v1::Durability::WAL;
  std::string policy = "async";
  uint32_t workers = FaultRunOptions().workers;
  // Size of the state on each of two servers.
  uint32_t idle_mib = 0;
  double drop_replies = 0;
  absl::Duration kill_every = absl::Milliseconds(200);
  bool freeze = false;
};

Scenario Kills(const SoakPlace& place, const KillPlan& plan) {
  return {plan.name, plan.share, [=](absl::Duration time, uint64_t seed) {
            const StateFolder folder(place, plan.name);
            FaultRunOptions options = Base(place, plan.policy, time, seed);
            options.durability = plan.durability;
            options.state_folder = folder.path();
            options.workers = plan.workers;
            options.idle_mib = 2 * plan.idle_mib;
            options.kill_every = plan.kill_every;
            options.freeze = plan.freeze;
            options.plan = {.drop_replies = plan.drop_replies, .silence = absl::Milliseconds(50)};
            return ValidationErrors(options);
          }};
}

absl::StatusOr<Outcome> OldIncarnations(const SoakPlace& place, absl::Duration time, uint64_t seed) {
  return OutcomeOf(InParts<OldIncarnationCounts>(
      time, seed, [&](uint64_t part) { return SendLatePushes({.server = place.server, .seed = part}); }));
}

// State as large as the time allows at 20 MB/s, up to 2 GiB; uses twice that much memory.
absl::StatusOr<Outcome> BigShard(const SoakPlace& place, absl::Duration time, uint64_t) {
  const StateFolder folder(place, "big_shard");
  BigShardOptions options;
  options.server = place.server;
  options.folder = folder.path();
  options.state_mib = static_cast<uint32_t>(std::clamp(15 * absl::ToDoubleSeconds(time), 64.0, 2048.0));
  // The guarantee is twice the link's time; a busy machine may be slower.
  options.timeout = absl::Seconds(60 + 3 * (uint64_t{options.state_mib} << 20) / options.bytes_per_second);
  const absl::StatusOr<BigShardCounts> counts = RunBigShard(options);
  if (!counts.ok()) return counts.status();
  Outcome outcome;
  outcome.counts.pushes_acknowledged = counts->pushes_acknowledged;
  outcome.counts.pushes_lost = counts->pushes_lost;
  outcome.counts.pushes_duplicated = counts->pushes_duplicated;
  outcome.counts.wrong_weights = counts->wrong_weights;
  outcome.counts.kills = outcome.counts.restarts = 1;
  outcome.figures = counts->ToJson();
  outcome.good = counts->good();
  return outcome;
}

absl::StatusOr<Outcome> Overload(const SoakPlace& place, absl::Duration time, uint64_t) {
  const absl::StatusOr<OverloadCounts> counts = RunOverload({.server = place.server, .time = time});
  if (absl::IsUnavailable(counts.status())) return Skipped(counts.status());
  if (!counts.ok()) return counts.status();
  Outcome outcome;
  outcome.figures["limit_bytes"] = counts->limit_bytes;
  outcome.figures["peak_bytes"] = counts->peak_bytes;
  outcome.figures["group_peak_bytes"] = counts->group_peak_bytes;
  outcome.figures["refused"] = counts->refused;
  outcome.figures["calls"] = counts->calls;
  outcome.figures["killed"] = counts->killed;
  outcome.good = !counts->killed && counts->peak_bytes <= counts->limit_bytes && counts->refused > 0;
  return outcome;
}

}  // namespace

std::vector<Scenario> PushScenarios(const SoakPlace& place) {
  using namespace std::placeholders;
  return {
      LostReplies(place, "async", 8, 0.15),
      LostReplies(place, "bounded", 4, 0.05),
      LostReplies(place, "sync", 4, 0.05),
      {"cuts_and_delays", 0.05, std::bind(Cuts, place, _1, _2)},
      {"partitions", 0.1, std::bind(Partitions, place, nullptr, _1, _2)},
      {"old_incarnation", 0.02, std::bind(OldIncarnations, place, _1, _2)},
      {"pulled_cable", 0, std::bind(PulledCable, place, _1, _2)},
      {"big_shard", 0, std::bind(BigShard, place, _1, _2)},
      {"overload", 0.05, std::bind(Overload, place, _1, _2)},
      Kills(place, {.name = "kills_wal", .share = 0.1}),
      Kills(place, {.name = "kills_wal_sync", .share = 0.1, .durability = v1::Durability::WAL_SYNC}),
      Kills(place, {.name = "kills_replica", .share = 0.1, .durability = v1::Durability::STANDBY}),
      Kills(place, {.name = "kills_replica_sync_policy", .durability = v1::Durability::STANDBY, .policy = "sync"}),
      Kills(place, {.name = "freezes_replica", .share = 0.05, .durability = v1::Durability::STANDBY, .freeze = true}),
      Kills(place, {.name = "kills_sync_policy", .share = 0.05, .policy = "sync"}),
      Kills(place, {.name = "kills_and_lost_replies",
                    .share = 0.1,
                    .workers = 16,
                    .drop_replies = 0.1,
                    .kill_every = absl::Seconds(1)}),
      Kills(place, {.name = "kills_256_mib", .share = 0.1, .idle_mib = 256, .kill_every = absl::Seconds(1)}),
  };
}

}  // namespace ballast
