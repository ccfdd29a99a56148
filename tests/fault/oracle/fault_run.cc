// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/oracle/fault_run.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/coordinator_link.h"
#include "common/security/credentials.h"
#include "tests/fault/oracle/push_oracle.h"
#include "tests/fault/oracle/server_process.h"

namespace ballast {
namespace {

class Run {
 public:
  explicit Run(const FaultRunOptions& options) : options_(options) {}

  absl::StatusOr<FaultCounts> Do() {
    const absl::Time begun = absl::Now();
    if (absl::Status status = Begin(); !status.ok()) return status;
    if (absl::Status status = Harm(begun + options_.time); !status.ok()) return status;
    oracle_->Stop();
    // A lost reply must not cost the last pushes their time.
    for (auto& proxy : proxies_) proxy->SetPlan({});
    const absl::StatusOr<OracleReport> report = oracle_->Finish();
    if (!report.ok()) return report.status();
    counts_.pushes_acknowledged = report->acknowledged;
    counts_.pushes_lost = report->lost;
    counts_.pushes_duplicated = report->duplicated;
    counts_.wrong_weights = report->wrong_weights;
    counts_.wrong_pulls = report->wrong_pulls;
    counts_.retries = report->retries;
    for (const auto& proxy : proxies_) {
      const FaultProxy::Counts passed = proxy->counts();
      counts_.replies += passed.replies;
      counts_.replies_dropped += passed.dropped_replies;
      counts_.connections += passed.connections;
    }
    Measure(counts_.resident_last, counts_.descriptors_last);
    if (absl::Status status = CountDuplicates(); !status.ok()) return status;
    oracle_.reset();
    // The one with the coordinator last.
    for (auto server = servers_.rbegin(); server != servers_.rend(); ++server) {
      if (absl::Status status = (*server)->End(); !status.ok()) return status;
    }
    counts_.seconds = absl::ToDoubleSeconds(absl::Now() - begun);
    return counts_;
  }

 private:
  absl::Status Begin() {
    OracleJob job;
    if (pairs()) {
      if (absl::Status status = StartPairs(); !status.ok()) return status;
      job.client.coordinator = servers_[0]->address();
    }
    for (uint32_t rank = 0; rank < options_.servers && !pairs(); ++rank) {
      std::vector<std::string> flags = options_.server_flags;
      flags.insert(flags.end(), {"--workers", absl::StrCat(options_.workers)});
      // The far host's network has nobody else in it.
      if (options_.hosts != nullptr) flags.push_back("--insecure");
      if (options_.durability != v1::Durability::NONE) {
        const std::string folder = absl::StrCat(options_.state_folder, "/", rank);
        std::filesystem::remove_all(folder);
        flags.insert(flags.end(), {"--state_dir", folder});
      }
      if (absl::Status status = OnServersHost([&] { return StartServer(flags); }); !status.ok()) return status;
      job.servers.push_back(servers_.back()->address());
    }
    const bool proxies = options_.hosts == nullptr && !pairs();
    for (uint32_t worker = 0; worker < options_.workers && proxies; ++worker) {
      std::vector<std::string>& way = job.ways.emplace_back();
      for (const std::string& address : job.servers) {
        auto proxy = FaultProxy::Start(address, {}, options_.seed * 65536 + proxies_.size());
        if (!proxy.ok()) return proxy.status();
        way.push_back((*proxy)->address());
        proxies_.push_back(*std::move(proxy));
      }
    }
    job.client.job = "oracle";
    job.client.policy = options_.policy;
    job.client.durability.set_mode(options_.durability);
    job.client.shared_memory = false;
    job.client.channels_per_shard = 1;
    job.client.rpc_timeout = options_.rpc_timeout;
    if (options_.hosts != nullptr) {
      absl::StatusOr<Credentials> insecure = Credentials::Load({.insecure = true});
      if (!insecure.ok()) return insecure.status();
      job.client.credentials = *std::move(insecure);
    }
    // Any push is answered in the end.
    job.client.retry_timeout = job.client.wait_timeout = absl::Minutes(5);
    job.workers = options_.workers;
    job.pushes = options_.pushes;
    job.idle_mib = options_.idle_mib;
    patient_ = job.client;
    addresses_ = job.servers;
    auto oracle = PushOracle::Start(std::move(job));
    if (!oracle.ok()) return oracle.status();
    oracle_ = *std::move(oracle);
    for (auto& proxy : proxies_) proxy->SetPlan(options_.plan);
    const auto first = oracle_->AwaitAcknowledgement(absl::InfinitePast(), absl::Now() + options_.patience);
    Measure(counts_.resident_first, counts_.descriptors_first);
    return first.status();
  }

  absl::Status OnServersHost(const std::function<absl::Status()>& run) const {
    return options_.hosts == nullptr ? run() : options_.hosts->OnFar(run);
  }

  absl::Status StartServer(const std::vector<std::string>& flags) {
    const std::string host = options_.hosts == nullptr ? "127.0.0.1" : TwoHosts::far_address();
    auto server = ServerProcess::Start(options_.server, host, flags);
    if (server.ok()) servers_.push_back(*std::move(server));
    return server.status();
  }

  bool pairs() const { return options_.durability == v1::Durability::REPLICA; }

  // The coordinator's process first.
  absl::Status StartPairs() {
    std::filesystem::remove_all(options_.state_folder);
    for (uint32_t process = 0; process < 2 * options_.servers; ++process) {
      std::vector<std::string> flags = options_.server_flags;
      flags.insert(flags.end(), {"--replicated", "--servers", absl::StrCat(options_.servers), "--workers",
                                 absl::StrCat(options_.workers), "--rank", absl::StrCat(process)});
      if (process == 0) flags.insert(flags.end(), {"--state_dir", options_.state_folder});
      if (process > 0) flags.insert(flags.end(), {"--coordinator", servers_[0]->address()});
      if (absl::Status status = StartServer(flags); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Until whichever server is killed has a standby that takes over.
  absl::Status AwaitStandbys() {
    const absl::Time deadline = absl::Now() + options_.patience;
    uint32_t in_step = 0;
    while (absl::Now() < deadline) {
      auto link = CoordinatorLink::Connect(servers_[0]->address(), options_.patience);
      if (!link.ok()) return link.status();
      const absl::StatusOr<v1::GetProgressResponse> progress = (*link)->GetProgress();
      if (!progress.ok()) return progress.status();
      if (progress->progress().state() == v1::JOB_STATE_FAILED) {
        return absl::AbortedError(progress->progress().reason());
      }
      in_step = 0;
      for (const auto& member : progress->members()) in_step += member.in_step();
      if (in_step == options_.servers || oracle_->AwaitEnd(absl::Now() + absl::Milliseconds(20))) {
        return absl::OkStatus();
      }
    }
    return absl::DeadlineExceededError(absl::StrCat(in_step, " of ", options_.servers, " standbys are in step after ",
                                                    absl::FormatDuration(options_.patience)));
  }

  // Of a pair: it comes back when the other has taken over, but for the one with the coordinator, who says so.
  absl::Status KillOneOfAPair() {
    if (absl::Status status = AwaitStandbys(); !status.ok()) return status;
    const size_t victim = counts_.kills % servers_.size();
    const absl::Time killed = absl::Now();
    if (absl::Status status = servers_[victim]->Kill(); !status.ok()) return status;
    ++counts_.kills;
    absl::Status restarted;
    if (victim == 0) restarted = servers_[victim]->Restart();
    // What the dead one answered has come by then.
    absl::Status works = AwaitWork(killed, killed + absl::Milliseconds(50), counts_.recovery_seconds);
    if (victim > 0) restarted = servers_[victim]->Restart();
    ++counts_.restarts;
    return restarted.ok() ? works : restarted;
  }

  absl::Status FreezeOneOfAPair() {
    if (absl::Status status = AwaitStandbys(); !status.ok()) return status;
    ServerProcess& victim = *servers_[1 + counts_.kills % (servers_.size() - 1)];
    const absl::Time frozen = absl::Now();
    victim.Signal(SIGSTOP);
    ++counts_.kills;
    const absl::Status works = AwaitWork(frozen, frozen + absl::Milliseconds(50), counts_.recovery_seconds);
    victim.Signal(SIGCONT);
    return works;
  }

  // Until the pushes are made, the kills are done or the time is over.
  absl::Status Harm(absl::Time end) {
    absl::Time kill_at = absl::Now() + options_.kill_every, part_at = absl::Now() + options_.partition_every;
    while (!oracle_->AwaitEnd(std::min({kill_at, part_at, end}))) {
      const absl::Time now = absl::Now();
      if (now >= end || counts_.kills >= options_.kills) return absl::OkStatus();
      if (now >= kill_at) {
        if (absl::Status status = KillOne(); !status.ok()) return status;
        kill_at = absl::Now() + options_.kill_every;
      }
      if (now >= part_at) {
        if (absl::Status status = PartAll(); !status.ok()) return status;
        part_at = absl::Now() + options_.partition_every;
      }
    }
    return absl::OkStatus();
  }

  absl::Status KillOne() {
    if (pairs()) return options_.freeze ? FreezeOneOfAPair() : KillOneOfAPair();
    ServerProcess& server = *servers_[counts_.kills % servers_.size()];
    const absl::Time killed = absl::Now();
    if (absl::Status status = server.Kill(); !status.ok()) return status;
    ++counts_.kills;
    if (absl::Status status = OnServersHost([&] { return server.Restart(); }); !status.ok()) return status;
    ++counts_.restarts;
    return AwaitWork(killed, absl::Now(), counts_.recovery_seconds);
  }

  absl::Status Part() {
    for (auto& proxy : proxies_) proxy->Partition();
    return options_.hosts == nullptr ? absl::OkStatus() : options_.hosts->Pull();
  }

  absl::Status Heal() {
    for (auto& proxy : proxies_) proxy->Heal();
    return options_.hosts == nullptr ? absl::OkStatus() : options_.hosts->Plug();
  }

  absl::Status PartAll() {
    if (absl::Status status = Part(); !status.ok()) return status;
    ++counts_.partitions;
    // Nobody gets through, so this waits as long as it should unless all is over.
    const bool over = oracle_->AwaitEnd(absl::Now() + options_.partition_for);
    const absl::Time healed = absl::Now();
    if (absl::Status status = Heal(); !status.ok()) return status;
    return over ? absl::OkStatus() : AwaitWork(healed, healed, counts_.healing_seconds);
  }

  // Notes the time from `since` to the first push acknowledged from `begin` on. A hang is counted; an error ends the
  // run.
  absl::Status AwaitWork(absl::Time since, absl::Time begin, std::vector<double>& seconds) {
    const auto works = oracle_->AwaitAcknowledgement(begin, begin + options_.patience);
    if (works.ok()) {
      seconds.push_back(absl::ToDoubleSeconds(*works - since));
      return absl::OkStatus();
    }
    if (!absl::IsDeadlineExceeded(works.status()) || oracle_->AwaitEnd(absl::Now())) return works.status();
    ++counts_.hangs;
    return absl::OkStatus();
  }

  void Measure(uint64_t& resident, uint64_t& descriptors) const {
    for (const auto& server : servers_) {
      const ProcessUse use = server->use();
      resident += use.resident_bytes;
      descriptors += use.descriptors;
    }
  }

  absl::Status CountDuplicates() {
    ClientOptions options = patient_;
    options.shards = addresses_;
    options.workers = options_.workers;
    auto client = Client::Connect(std::move(options));
    if (!client.ok()) return client.status();
    const auto answers = (*client)->GetStatus();
    if (!answers.ok()) return answers.status();
    for (const v1::GetStatusResponse& answer : *answers) counts_.duplicates_refused += answer.duplicates();
    return absl::OkStatus();
  }

  const FaultRunOptions options_;
  FaultCounts counts_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<std::unique_ptr<FaultProxy>> proxies_;
  ClientOptions patient_;
  std::vector<std::string> addresses_;
  std::unique_ptr<PushOracle> oracle_;
};

}  // namespace

absl::StatusOr<FaultCounts> RunFaults(const FaultRunOptions& options) { return Run(options).Do(); }

}  // namespace ballast
