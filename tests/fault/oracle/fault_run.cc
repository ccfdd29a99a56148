// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"
#include "common/rpc/credentials.h"
#include "tests/fault/oracle/push_faults.h"
#include "tests/fault/oracle/push_oracle.h"
#include "tests/fault/oracle/server_fleet.h"

namespace ballast {
namespace {

// Responses of a killed server may still arrive for this long.
constexpr absl::Duration kMaxResponseDelay = absl::Milliseconds(50);

class Run {
 public:
  explicit Run(const FaultRunOptions& options) : options_(options) {}

  absl::StatusOr<FaultCounts> Do() {
    const absl::Time begun = absl::Now();
    if (absl::Status status = Begin(); !status.ok()) return status;
    if (absl::Status status = Harm(begun + options_.time); !status.ok()) return status;
    oracle_->Stop();
    // The last pushes must not be delayed by lost replies.
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
    if (absl::Status status = fleet_->End(); !status.ok()) return status;
    counts_.seconds = absl::ToDoubleSeconds(absl::Now() - begun);
    return counts_;
  }

 private:
  absl::Status Begin() {
    auto fleet = ServerFleet::Start({.server = options_.server,
                                     .flags = options_.server_flags,
                                     .servers = options_.servers,
                                     .workers = options_.workers,
                                     .durability = options_.durability,
                                     .state_folder = options_.state_folder,
                                     .hosts = options_.hosts});
    if (!fleet.ok()) return fleet.status();
    fleet_ = *std::move(fleet);
    OracleJob job;
    job.servers = fleet_->addresses();
    job.client.coordinator = fleet_->coordinator();
    const bool by_proxies = options_.hosts == nullptr && !job.servers.empty();
    for (uint32_t worker = 0; worker < options_.workers && by_proxies; ++worker) {
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
    job.client.shared_memory = options_.shared_memory;
    job.client.data_streams = options_.data_streams;
    job.client.channels_per_shard = 1;
    job.client.rpc_timeout = options_.rpc_timeout;
    if (options_.hosts != nullptr) {
      absl::StatusOr<Credentials> insecure = Credentials::Load({.insecure = true});
      if (!insecure.ok()) return insecure.status();
      job.client.credentials = *std::move(insecure);
    }
    // Long enough for every push to succeed in the end.
    job.client.retry_timeout = job.client.wait_timeout = absl::Minutes(5);
    job.workers = options_.workers;
    job.pushes = options_.pushes;
    job.elements = options_.elements;
    job.idle_mib = options_.idle_mib;
    client_options_ = job.client;
    addresses_ = job.servers;
    auto oracle = PushOracle::Start(std::move(job));
    if (!oracle.ok()) return oracle.status();
    oracle_ = *std::move(oracle);
    for (auto& proxy : proxies_) proxy->SetPlan(options_.plan);
    const auto first = oracle_->AwaitAcknowledgement(absl::InfinitePast(), absl::Now() + options_.timeout);
    Measure(counts_.resident_first, counts_.descriptors_first);
    return first.status();
  }

  // Injects faults until the pushes are made, the kills are done or the time is over.
  absl::Status Harm(absl::Time end) {
    absl::Time kill_at = absl::Now() + options_.kill_every, part_at = absl::Now() + options_.partition_every,
               cut_at = absl::Now() + options_.cut_every;
    while (!oracle_->AwaitEnd(std::min({kill_at, part_at, cut_at, end}))) {
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
      if (now >= cut_at) {
        for (auto& proxy : proxies_) proxy->CutAll();
        cut_at = absl::Now() + options_.cut_every;
      }
    }
    return absl::OkStatus();
  }

  absl::Status FreezeOne() {
    if (absl::Status status = fleet_->AwaitSpares(options_.timeout); !status.ok()) return status;
    const absl::Time frozen = absl::Now();
    fleet_->FreezeNext();
    ++counts_.kills;
    const absl::Status works = AwaitWork(frozen, frozen + kMaxResponseDelay, counts_.recovery_seconds);
    fleet_->Thaw();
    return works;
  }

  absl::Status KillOne() {
    if (options_.freeze) return FreezeOne();
    if (absl::Status status = fleet_->AwaitSpares(options_.timeout); !status.ok()) return status;
    const absl::Time killed = absl::Now();
    if (absl::Status status = fleet_->KillNext(); !status.ok()) return status;
    ++counts_.kills;
    const bool goes_on = fleet_->GoesOnWithout();
    if (goes_on) {
      const absl::Status status = AwaitWork(killed, absl::Now() + kMaxResponseDelay, counts_.recovery_seconds);
      if (!status.ok()) return status;
    }
    if (absl::Status status = fleet_->Restart(); !status.ok()) return status;
    ++counts_.restarts;
    return goes_on ? absl::OkStatus() : AwaitWork(killed, absl::Now(), counts_.recovery_seconds);
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
    // No push gets through, so this waits for the whole duration unless all pushes are made.
    const bool over = oracle_->AwaitEnd(absl::Now() + options_.partition_for);
    const absl::Time healed = absl::Now();
    if (absl::Status status = Heal(); !status.ok()) return status;
    return over ? absl::OkStatus() : AwaitWork(healed, healed, counts_.healing_seconds);
  }

  // Records the time from `since` to the first push acknowledged from `begin` on. Counts a hang; an error ends the run.
  absl::Status AwaitWork(absl::Time since, absl::Time begin, std::vector<double>& seconds) {
    const auto works = oracle_->AwaitAcknowledgement(begin, begin + options_.timeout);
    if (works.ok()) {
      seconds.push_back(absl::ToDoubleSeconds(*works - since));
      return absl::OkStatus();
    }
    if (!absl::IsDeadlineExceeded(works.status()) || oracle_->AwaitEnd(absl::Now())) return works.status();
    ++counts_.hangs;
    return absl::OkStatus();
  }

  void Measure(uint64_t& resident, uint64_t& descriptors) const {
    const ProcessUse use = fleet_->use();
    resident = use.resident_bytes;
    descriptors = use.descriptors;
  }

  absl::Status CountDuplicates() {
    ClientOptions options = client_options_;
    options.shards = addresses_;
    options.workers = options_.workers;
    auto client = Client::Connect(std::move(options));
    if (!client.ok()) return client.status();
    const auto answers = (*client)->GetStatus();
    if (!answers.ok()) return answers.status();
    for (const v1::GetStatusResponse& answer : *answers) {
      counts_.duplicates_refused += answer.duplicates();
      counts_.shared_calls += answer.shared_calls();
      counts_.stream_calls += answer.stream_calls();
    }
    return absl::OkStatus();
  }

  const FaultRunOptions options_;
  FaultCounts counts_;
  std::unique_ptr<ServerFleet> fleet_;
  std::vector<std::unique_ptr<FaultProxy>> proxies_;
  ClientOptions client_options_;
  std::vector<std::string> addresses_;
  std::unique_ptr<PushOracle> oracle_;
};

}  // namespace

void FaultCounts::Add(const FaultCounts& other) {
  AddFields(other, *this);
  recovery_seconds.insert(recovery_seconds.end(), other.recovery_seconds.begin(), other.recovery_seconds.end());
  healing_seconds.insert(healing_seconds.end(), other.healing_seconds.begin(), other.healing_seconds.end());
  seconds += other.seconds;
}

nlohmann::ordered_json FaultCounts::ToJson() const {
  nlohmann::ordered_json json = JsonOf(*this);
  AddQuantiles("recovery_seconds", recovery_seconds, json);
  AddQuantiles("healing_seconds", healing_seconds, json);
  return json;
}

absl::StatusOr<FaultCounts> RunFaults(const FaultRunOptions& options) { return Run(options).Do(); }

}  // namespace ballast
