// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/scenarios.h"

#include <algorithm>
#include <memory>

#include "client/client.h"
#include "tests/fault/control/control_latency.h"
#include "tests/fault/durability/disk_faults.h"
#include "tests/fault/hostile/hostile_soak.h"
#include "tests/fault/jobs/job_faults.h"
#include "tests/fault/jobs/job_files.h"
#include "tests/fault/network/two_hosts.h"
#include "tests/fault/overload/overload.h"
#include "tests/fault/tables/table_faults.h"

namespace ballast {
namespace {

// --- the oracle's pushes to real servers ---

v1::ConsistencyPolicy Policy(const std::string& name) {
  v1::ConsistencyPolicy policy;
  if (name == "async") policy.mutable_async();
  if (name == "bounded") policy.mutable_bounded()->set_steps_ahead(2);
  if (name == "sync") policy.mutable_sync()->set_deterministic(true);
  return policy;
}

FaultRunOptions Base(const SoakPlace& place, const std::string& policy, absl::Duration time, uint64_t seed,
                     FaultRunOptions options = {}) {
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

// Ends of connections, with which calls in shared memory lose their responses.
absl::StatusOr<Outcome> SharedMemoryCuts(const SoakPlace& place, absl::Duration time, uint64_t seed) {
  FaultRunOptions options = Base(place, "async", time, seed);
  options.shared_memory = true;
  options.cut_every = absl::Milliseconds(1300);
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

// Pauses between two kills.
constexpr absl::Duration kSoon = absl::Milliseconds(200), kLater = absl::Seconds(1);

// Servers are killed as `kills` says, which has a durability and a pause between kills.
Scenario Kills(const SoakPlace& place, const std::string& name, double share, const FaultRunOptions& kills,
               const std::string& policy = "async") {
  return {name, share, [=](absl::Duration time, uint64_t seed) {
            const StateFolder folder(place, name);
            FaultRunOptions options = Base(place, policy, time, seed, kills);
            options.state_folder = folder.path();
            options.plan.silence = absl::Milliseconds(50);
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
  const FaultCounts pushes = {.pushes_acknowledged = counts->pushes_acknowledged,
                              .pushes_lost = counts->pushes_lost,
                              .pushes_duplicated = counts->pushes_duplicated,
                              .wrong_weights = counts->wrong_weights,
                              .kills = 1,
                              .restarts = 1};
  return Outcome{pushes, counts->ToJson(), counts->good()};
}

absl::StatusOr<Outcome> Overload(const SoakPlace& place, absl::Duration time, uint64_t) {
  const absl::StatusOr<OverloadCounts> counts = RunOverload({.server = place.server, .time = time});
  if (absl::IsUnavailable(counts.status())) return Skipped(counts.status());
  if (!counts.ok()) return counts.status();
  return Outcome{{},
                 {{"limit_bytes", counts->limit_bytes},
                  {"peak_bytes", counts->peak_bytes},
                  {"group_peak_bytes", counts->group_peak_bytes},
                  {"refused", counts->refused},
                  {"calls", counts->calls},
                  {"killed", counts->killed}},
                 !counts->killed && counts->peak_bytes <= counts->limit_bytes && counts->refused > 0};
}

// --- tables whose rows count their uses ---

Scenario Tables(const SoakPlace& place, const std::string& name, const TableFaultOptions& faults) {
  return {name, 0, [=](absl::Duration time, uint64_t seed) -> absl::StatusOr<Outcome> {
            const StateFolder folder(place, name);
            TableFaultOptions options = faults;
            options.server = place.server;
            options.counting_worker = place.counting_worker;
            options.folder = folder.path();
            options.time = time;
            options.seed = seed;
            const absl::StatusOr<TableFaultCounts> counts = CountRowsUnderKills(options);
            if (!counts.ok()) return counts.status();
            FaultCounts common = {.pushes_acknowledged = counts->pushes_acknowledged,
                                  .retries = counts->retries,
                                  .duplicates_refused = counts->duplicates_refused,
                                  .kills = counts->kills,
                                  .restarts = counts->restarts,
                                  .hangs = counts->hangs,
                                  .recovery_seconds = counts->recovery_seconds};
            return Outcome{std::move(common), counts->ToJson(), counts->good()};
          }};
}

// --- disks that lose or damage data, die in the middle of a checkpoint, or are full ---

absl::StatusOr<Outcome> LostDisks(const SoakPlace& place, v1::Durability::Mode mode, absl::Duration time,
                                  uint64_t seed) {
  const StateFolder folder(place, "lost-disk");
  LostDiskOptions options;
  options.folder = folder.path();
  options.mode = mode;
  options.rounds = 5;
  if (mode == v1::Durability::WAL) options.most_pushes = 60000;
  return OutcomeOf(InParts<LostDiskCounts>(time, seed, [&](uint64_t part) {
    options.seed = part;
    return LoseDisks(options);
  }));
}

absl::StatusOr<Outcome> Damage(const SoakPlace& place, absl::Duration time, uint64_t seed) {
  const StateFolder folder(place, "damage");
  return OutcomeOf(InParts<DamageCounts>(
      time, seed, [&](uint64_t part) { return DamageFolders({.folder = folder.path(), .seed = part}); }));
}

absl::StatusOr<Outcome> Checkpoints(const SoakPlace& place, absl::Duration time, uint64_t seed) {
  const StateFolder folder(place, "checkpoints");
  return OutcomeOf(InParts<CheckpointDeathCounts>(
      time, seed, [&](uint64_t part) { return DieInCheckpoints({.folder = folder.path(), .seed = part}); }));
}

absl::StatusOr<Outcome> FullDisks(const SoakPlace& place, v1::Durability::Mode mode, absl::Duration time,
                                  uint64_t seed) {
  const StateFolder folder(place, "disk-full");
  const absl::StatusOr<DiskFullCounts> counts = InParts<DiskFullCounts>(time, seed, [&](uint64_t) {
    return FillDisks({.server = place.server, .folder = folder.path(), .mode = mode, .rounds = 10});
  });
  return absl::IsUnavailable(counts.status()) ? Skipped(counts.status()) : OutcomeOf(counts);
}

// --- control calls on servers that are busy or whose disk is slow ---

// Limit on a machine whose cores are busy: ten times the latency on an idle one.
constexpr absl::Duration kMaxP99 = absl::Milliseconds(500);

absl::StatusOr<Outcome> SlowDisk(const SoakPlace& place, absl::Duration time, uint64_t) {
  const StateFolder folder(place, "slow-disk");
  ControlOptions options;
  options.server = place.server;
  options.slow_disk_server = place.slow_disk_server;
  options.folder = folder.path();
  options.phases = {ControlPhase::kCheckpoint, ControlPhase::kResume, ControlPhase::kDeclaration,
                    ControlPhase::kPushLoad, ControlPhase::kStopped};
  options.declared_mib = 256;
  // Duration of the checkpoints, and of the load.
  options.time = time * 0.4;
  const absl::StatusOr<ControlReport> report = MeasureControl(options);
  if (!report.ok()) return report.status();
  return Outcome{{}, report->ToJson(), report->good(kMaxP99)};
}

// --- jobs of real servers and workers that are killed ---

Scenario WorkerKills(const SoakPlace& place, const std::string& policy) {
  const std::string name = "worker_kills_" + policy;
  return {name, 0, [=](absl::Duration time, uint64_t) {
            const StateFolder folder(place, name);
            return OutcomeOf(KillWorkers({.server = place.server,
                                          .worker = place.worker,
                                          .folder = folder.path(),
                                          .policy = policy + " {}",
                                          .time = time}));
          }};
}

absl::StatusOr<Outcome> CheckpointKills(const SoakPlace& place, absl::Duration time, uint64_t seed) {
  const StateFolder folder(place, "checkpoint-kills");
  return OutcomeOf(KillInCheckpoints({.ballast = place.ballast,
                                      .server = place.server,
                                      .worker = place.worker,
                                      .folder = folder.path(),
                                      .time = time,
                                      .seed = seed}));
}

absl::StatusOr<Outcome> Training(const SoakPlace& place, absl::Duration time, uint64_t) {
  const StateFolder folder(place, "training");
  const absl::StatusOr<TrainingSoakCounts> counts = SoakTraining({.ballast = place.ballast,
                                                                  .server = place.server,
                                                                  .worker = place.worker,
                                                                  .folder = folder.path(),
                                                                  .time = time});
  return absl::IsUnavailable(counts.status()) ? Skipped(counts.status()) : OutcomeOf(counts);
}

// --- attackers of a job that trains ---

absl::StatusOr<Outcome> Hostile(const SoakPlace& place, absl::Duration time, uint64_t) {
  if (absl::Status data = FindFashionData(); !data.ok()) return Skipped(data);
  const StateFolder folder(place, "hostile");
  const absl::StatusOr<HostileCounts> counts = SoakHostile(
      {.server = place.server, .worker = place.worker, .folder = folder.path(), .time = time, .attacks = AllAttacks()});
  if (!counts.ok()) return counts.status();
  return Outcome{{}, counts->ToJson(), counts->good};
}

}  // namespace

std::vector<Scenario> AllScenarios(const SoakPlace& place) {
  using namespace std::placeholders;
  return {
      LostReplies(place, "async", 8, 0.15),
      LostReplies(place, "bounded", 4, 0.05),
      LostReplies(place, "sync", 4, 0.05),
      {"cuts_and_delays", 0.05, std::bind(Cuts, place, _1, _2)},
      {"shared_memory_cuts", 0.05, std::bind(SharedMemoryCuts, place, _1, _2)},
      {"partitions", 0.1, std::bind(Partitions, place, nullptr, _1, _2)},
      {"old_incarnation", 0.02, std::bind(OldIncarnations, place, _1, _2)},
      {"pulled_cable", 0, std::bind(PulledCable, place, _1, _2)},
      {"big_shard", 0, std::bind(BigShard, place, _1, _2)},
      {"overload", 0.05, std::bind(Overload, place, _1, _2)},
      Kills(place, "kills_wal", 0.1, {.durability = v1::Durability::WAL, .kill_every = kSoon}),
      Kills(place, "kills_wal_sync", 0.1, {.durability = v1::Durability::WAL_SYNC, .kill_every = kSoon}),
      Kills(place, "kills_replica", 0.07, {.durability = v1::Durability::STANDBY, .kill_every = kSoon}),
      Kills(place, "kills_shared_memory", 0.05,
            {.durability = v1::Durability::WAL, .shared_memory = true, .kill_every = kLater}),
      // Long enough for the next stream to open.
      Kills(place, "kills_data_streams", 0.03, {.durability = v1::Durability::WAL, .kill_every = 2 * kLater}),
      Kills(place, "kills_replica_sync_policy", 0, {.durability = v1::Durability::STANDBY, .kill_every = kSoon},
            "sync"),
      Kills(place, "freezes_replica", 0.05,
            {.durability = v1::Durability::STANDBY, .kill_every = kSoon, .freeze = true}),
      Kills(place, "kills_sync_policy", 0.05, {.durability = v1::Durability::WAL, .kill_every = kSoon}, "sync"),
      Kills(place, "kills_and_lost_replies", 0.1,
            {.workers = 16, .durability = v1::Durability::WAL, .plan = {.drop_replies = 0.1}, .kill_every = kLater}),
      // Twice 256 MiB on two servers.
      Kills(place, "kills_256_mib", 0.1, {.durability = v1::Durability::WAL, .idle_mib = 512, .kill_every = kLater}),
      {"lost_disk_wal", 0.03, std::bind(LostDisks, place, v1::Durability::WAL, _1, _2)},
      {"lost_disk_wal_sync", 0.03, std::bind(LostDisks, place, v1::Durability::WAL_SYNC, _1, _2)},
      {"damage", 0.04, std::bind(Damage, place, _1, _2)},
      {"checkpoints", 0.03, std::bind(Checkpoints, place, _1, _2)},
      {"disk_full_wal", 0.02, std::bind(FullDisks, place, v1::Durability::WAL, _1, _2)},
      {"disk_full_wal_sync", 0.02, std::bind(FullDisks, place, v1::Durability::WAL_SYNC, _1, _2)},
      Tables(place, "tables_async", {.durability = v1::Durability::WAL}),
      Tables(place, "tables_wal_sync", {.durability = v1::Durability::WAL_SYNC}),
      Tables(place, "tables_sync", {.durability = v1::Durability::WAL, .sync = true}),
      Tables(place, "tables_standby", {.durability = v1::Durability::STANDBY}),
      WorkerKills(place, "sync"),
      WorkerKills(place, "async"),
      {"checkpoint_kills", 0, std::bind(CheckpointKills, place, _1, _2)},
      {"training", 0, std::bind(Training, place, _1, _2)},
      {"hostile", 0, std::bind(Hostile, place, _1, _2)},
      {"slow_disk", 0, std::bind(SlowDisk, place, _1, _2)},
  };
}

}  // namespace ballast
