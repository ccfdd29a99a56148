// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/hostile/hostile_soak.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "common/run/metrics.h"
#include "common/security/key_folder.h"
#include "common/status/error_reason.h"
#include "tests/fault/jobs/job_files.h"
#include "tests/fault/jobs/job_processes.h"

namespace ballast {
namespace {

constexpr char kJob[] = "hostile_soak";
// Share of the time for the job without attackers.
constexpr double kQuietShare = 0.25;
// Rounds of all attacks, if the time is long enough: they show whether memory grows.
constexpr double kRounds = 10;
constexpr absl::Duration kShortestWindow = absl::Seconds(2);
constexpr absl::Duration kLongestWindow = absl::Seconds(10);
// Time for servers to release the memory that the attacks took: longer than they keep it unused.
constexpr absl::Duration kSettling = absl::Seconds(18);
constexpr absl::Duration kTick = absl::Milliseconds(100);
// Default of --bytes_in_flight_mib.
constexpr uint64_t kBytesInFlight = uint64_t{256} << 20;

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

// Owns one job of two servers and two workers.
class Job {
 public:
  // `name` is the name of its directory.
  Job(const HostileSoakOptions& options, const KeyFolder& keys, const std::string& name)
      : run_dir_(absl::StrCat(options.folder, "/", name)), processes_(Processes(options, keys, run_dir_)) {}

  absl::Status Start(const SecurityOptions& security) {
    if (absl::Status status = processes_.StartServers(); !status.ok()) return status;
    if (absl::Status status = processes_.StartWorkers(); !status.ok()) return status;
    absl::StatusOr<Credentials> credentials = Credentials::Load(security);
    if (!credentials.ok()) return credentials.status();
    ClientOptions options;
    options.shards = processes_.addresses();
    options.job = kJob;
    options.credentials = *std::move(credentials);
    auto client = Client::Connect(std::move(options));
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    return absl::OkStatus();
  }

  std::vector<std::string> addresses() const { return processes_.addresses(); }

  // Reads the processes' output until `end`. Returns an error if one of them has ended.
  absl::Status RunUntil(absl::Time end) {
    do {
      processes_.Hear(std::min(end, absl::Now() + kTick));
      if (absl::Status status = CheckAlive(); !status.ok()) return status;
    } while (absl::Now() < end);
    return absl::OkStatus();
  }

  // Number of push messages that the servers have accepted.
  absl::StatusOr<uint64_t> Pushes() {
    const auto shards = client_->GetStatus();
    if (!shards.ok()) return shards.status();
    uint64_t pushes = 0;
    for (const v1::GetStatusResponse& shard : *shards) pushes += shard.pushes() - shard.duplicates();
    return pushes;
  }

  // Resident memory of the largest server.
  uint64_t ResidentBytes() const {
    uint64_t most = 0;
    for (const auto& server : processes_.servers()) most = std::max(most, server->use().resident_bytes);
    return most;
  }

  // Test accuracy of each finished epoch.
  std::map<int64_t, double> Accuracies() const {
    std::map<int64_t, double> accuracies;
    const absl::StatusOr<Metrics> metrics = ReadMetrics(run_dir_ + "/metrics.jsonl");
    if (!metrics.ok()) return accuracies;
    for (const TestMetrics& test : metrics->test) accuracies[test.epoch] = test.accuracy.value_or(0);
    return accuracies;
  }

  absl::Status End() {
    client_.reset();
    if (absl::Status status = CheckAlive(); !status.ok()) return status;
    if (absl::Status status = processes_.EndWorkers(); !status.ok()) return status;
    return processes_.EndServers();
  }

 private:
  static JobProcessesOptions Processes(const HostileSoakOptions& options, const KeyFolder& keys,
                                       const std::string& run_dir) {
    return {.server = options.server,
            .worker = options.worker,
            .job_file = options.folder + "/job.textproto",
            .run_dir = run_dir,
            .servers = 2,
            .workers = 2,
            .server_flags = keys.ServerFlags(),
            .worker_flags = keys.WorkerFlags()};
  }

  absl::Status CheckAlive() {
    for (const auto& server : processes_.servers()) {
      if (server->Runs()) continue;
      return absl::InternalError(absl::StrCat("server on ", server->address(), " ended; output:\n", server->output()));
    }
    for (uint32_t rank = 0; rank < 2; ++rank) {
      if (processes_.worker(rank).Runs()) continue;
      return absl::InternalError(absl::StrCat("worker ", rank, " ended; output:\n", processes_.worker(rank).output()));
    }
    return absl::OkStatus();
  }

  const std::string run_dir_;
  JobProcesses processes_;
  std::unique_ptr<Client> client_;
};

class Run {
 public:
  explicit Run(const HostileSoakOptions& options) : options_(options) {}

  absl::StatusOr<HostileCounts> Do() {
    if (absl::Status status = Prepare(); !status.ok()) return status;
    if (absl::Status status = RunQuiet(); !status.ok()) return status;
    if (absl::Status status = RunAttacked(); !status.ok()) return status;
    Judge();
    return counts_;
  }

 private:
  absl::Status Prepare() {
    std::ofstream(options_.folder + "/job.textproto") << FashionJobText({.name = kJob});
    const absl::Time now = absl::Now();
    const CertificateAuthority::Validity validity = {now - absl::Hours(1), now + absl::Hours(1000)};
    const std::string path = options_.folder + "/keys";
    auto keys =
        KeyFolder::Make(path, {.job = kJob, .hosts = {"127.0.0.1"}, .authority = validity, .certificates = validity});
    if (!keys.ok()) return keys.status();
    keys_.emplace(*std::move(keys));
    target_.job = kJob;
    target_.reader = KeyFolder::ReaderOptions(path);
    target_.worker = target_.reader;
    target_.worker.token_file = path + "/worker.token";
    for (const Attack& attack : options_.attacks) counts_.attacks.push_back({attack.name});
    return absl::OkStatus();
  }

  absl::Status RunQuiet() {
    Job job(options_, *keys_, "quiet");
    if (absl::Status status = job.Start(target_.reader); !status.ok()) return status;
    if (absl::Status status = AwaitEpoch(job, absl::Now() + options_.time * kQuietShare); !status.ok()) return status;
    quiet_ = job.Accuracies();
    return job.End();
  }

  absl::Status RunAttacked() {
    Job job(options_, *keys_, "attacked");
    const absl::Time end = absl::Now() + options_.time * (1 - kQuietShare);
    if (absl::Status status = job.Start(target_.reader); !status.ok()) return status;
    target_.addresses = job.addresses();
    // After an epoch the servers have the memory that they need without attacks.
    if (absl::Status status = AwaitEpoch(job, absl::InfinitePast()); !status.ok()) return status;
    counts_.resident_bytes_before = job.ResidentBytes();
    const absl::Duration window =
        std::clamp(options_.time * (1 - kQuietShare) / (kRounds * (2.0 * options_.attacks.size() + 1)), kShortestWindow,
                   kLongestWindow);
    do {
      for (size_t i = 0; i < options_.attacks.size(); ++i) {
        if (absl::Status status = AttackOnce(job, i, window); !status.ok()) {
          return Annotate(status, absl::StrCat("under ", options_.attacks[i].name));
        }
      }
      if (absl::Status status = job.RunUntil(absl::Now() + kSettling); !status.ok()) return status;
      counts_.resident_bytes_by_round.push_back(job.ResidentBytes());
    } while (absl::Now() < end);
    if (absl::Status status = AwaitEpoch(job, absl::InfinitePast()); !status.ok()) return status;
    attacked_ = job.Accuracies();
    return job.End();
  }

  // Waits until `end`, and until at least one epoch has ended.
  absl::Status AwaitEpoch(Job& job, absl::Time end) {
    const absl::Time latest = std::max(end, absl::Now()) + absl::Minutes(5);
    while (absl::Now() < end || job.Accuracies().empty()) {
      if (absl::Now() > latest)
        return absl::DeadlineExceededError("timed out after 5 minutes waiting for the job's first epoch");
      if (absl::Status status = job.RunUntil(absl::Now() + 5 * kTick); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Adds to `pushes` and `seconds`.
  absl::Status Measure(Job& job, absl::Time end, uint64_t& pushes, double& seconds) {
    const absl::StatusOr<uint64_t> before = job.Pushes();
    if (!before.ok()) return before.status();
    const absl::Time begun = absl::Now();
    if (absl::Status status = job.RunUntil(end); !status.ok()) return status;
    const absl::StatusOr<uint64_t> after = job.Pushes();
    if (!after.ok()) return after.status();
    pushes += *after - *before;
    seconds += absl::ToDoubleSeconds(absl::Now() - begun);
    return absl::OkStatus();
  }

  absl::Status AttackOnce(Job& job, size_t index, absl::Duration window) {
    AttackCounts& counts = counts_.attacks[index];
    if (absl::Status status = Measure(job, absl::Now() + window, counts.pushes_before, counts.seconds_before);
        !status.ok()) {
      return status;
    }
    YieldToOthers();
    const absl::Time end = absl::Now() + window;
    absl::StatusOr<uint64_t> attempts = 0;
    absl::Notification done;
    std::thread attacker([&] {
      attempts = options_.attacks[index].run(target_, end);
      done.Notify();
    });
    absl::Status status = Measure(job, end, counts.pushes, counts.seconds);
    counts.resident_bytes = std::max(counts.resident_bytes, job.ResidentBytes());
    // The attacker may take a moment to end all its calls.
    while (status.ok() && !done.HasBeenNotified()) status = job.RunUntil(absl::Now() + kTick);
    attacker.join();
    if (!attempts.ok()) return attempts.status();
    counts.attempts += *attempts;
    return status;
  }

  void Judge() {
    double expected = 0, made = 0;
    for (const AttackCounts& attack : counts_.attacks) {
      made += static_cast<double>(attack.pushes);
      expected += Ratio(static_cast<double>(attack.pushes_before), attack.seconds_before) * attack.seconds;
      counts_.resident_bytes_most = std::max(counts_.resident_bytes_most, attack.resident_bytes);
      counts_.good = counts_.good && attack.attempts > 0;
    }
    counts_.throughput = Ratio(made, expected);
    for (const auto& [epoch, accuracy] : quiet_) {
      const auto found = attacked_.find(epoch);
      if (found == attacked_.end()) continue;
      counts_.epoch = epoch;
      counts_.accuracy = found->second;
      counts_.accuracy_without_attacks = accuracy;
    }
    counts_.resident_bytes_limit = counts_.resident_bytes_before + kBytesInFlight + options_.spare_bytes;
    counts_.good = counts_.good && counts_.throughput >= options_.least_throughput && counts_.epoch > 0 &&
                   counts_.accuracy >= counts_.accuracy_without_attacks - options_.accuracy_tolerance &&
                   counts_.resident_bytes_most <= counts_.resident_bytes_limit;
  }

  const HostileSoakOptions& options_;
  std::optional<KeyFolder> keys_;
  HostileTarget target_;
  std::map<int64_t, double> quiet_, attacked_;
  HostileCounts counts_;
};

}  // namespace

double AttackCounts::throughput() const {
  return Ratio(Ratio(static_cast<double>(pushes), seconds), Ratio(static_cast<double>(pushes_before), seconds_before));
}

nlohmann::ordered_json HostileCounts::ToJson() const {
  nlohmann::ordered_json json;
  json["throughput_under_attack"] = throughput;
  json["hostile_epoch"] = epoch;
  json["hostile_accuracy"] = accuracy;
  json["hostile_accuracy_without_attacks"] = accuracy_without_attacks;
  json["resident_bytes_before"] = resident_bytes_before;
  json["resident_bytes_most"] = resident_bytes_most;
  json["resident_bytes_limit"] = resident_bytes_limit;
  json["resident_bytes_by_round"] = resident_bytes_by_round;
  json["attacks"] = nlohmann::ordered_json::array();
  for (const AttackCounts& attack : attacks) {
    json["attacks"].push_back({{"attack", attack.name},
                               {"attempts", attack.attempts},
                               {"throughput", attack.throughput()},
                               {"resident_bytes", attack.resident_bytes}});
  }
  return json;
}

std::vector<Attack> AllAttacks() {
  std::vector<Attack> attacks = {WaitingPulls(), RacingPushes(), ReaderCalls()};
  for (Attack& flood : Http2Floods()) attacks.push_back(std::move(flood));
  return attacks;
}

absl::StatusOr<HostileCounts> SoakHostile(const HostileSoakOptions& options) { return Run(options).Do(); }

}  // namespace ballast
