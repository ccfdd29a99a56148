// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/coordinator_link.h"
#include "tests/fault/oracle/push_faults.h"
#include "tests/fault/oracle/push_oracle.h"
#include "tests/fault/programs/program.h"
#include "tests/fault/proxy/fault_proxy.h"

namespace ballast {
namespace {

// A server may hold its state, the bytes in flight of --bytes_in_flight_mib, and this.
constexpr uint64_t kBytesInFlight = uint64_t{256} << 20;
constexpr uint64_t kOtherBytes = uint64_t{128} << 20;

// Longest time without an acknowledgement; clients time out later.
constexpr double kMaxGapSeconds = 10;

constexpr uint32_t kTensors = 8;

class Run {
 public:
  explicit Run(const BigShardOptions& options) : options_(options) {}

  absl::StatusOr<BigShardCounts> Do() {
    if (absl::Status status = Begin(); !status.ok()) return status;
    if (absl::Status status = AwaitInStep(); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(status.message(), "\noutput of the server:\n", server_->output(),
                                                      "\noutput of the standby:\n", standby_->output()));
    }
    CountLines();
    counts_.server_peak_bytes = server_->use().peak_resident_bytes;
    counts_.standby_peak_bytes = standby_->use().peak_resident_bytes;
    if (absl::Status status = TakeOver(); !status.ok()) return status;
    oracle_->Stop();
    const absl::StatusOr<OracleReport> report = oracle_->Finish();
    if (!report.ok()) return report.status();
    counts_.pushes_acknowledged = report->acknowledged;
    counts_.pushes_lost = report->lost;
    counts_.pushes_duplicated = report->duplicated;
    counts_.wrong_weights = report->wrong_weights;
    oracle_.reset();
    return counts_;
  }

 private:
  absl::StatusOr<std::unique_ptr<ServerProcess>> Start(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--with_standby", "--servers", "1", "--rank", "0", "--workers",
                               absl::StrCat(options_.workers), "--bytes_in_flight_mib", "256"});
    return ServerProcess::Start(options_.server, "127.0.0.1", std::move(flags));
  }

  absl::Status Begin() {
    std::filesystem::remove_all(options_.folder);
    auto server = Start({"--state_dir", options_.folder});
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    // The standby gets the link's address, and the link the standby's.
    auto slow = FaultProxy::Start(server_->address(), {.bytes_per_second = options_.bytes_per_second}, 1);
    if (!slow.ok()) return slow.status();
    slow_link_ = *std::move(slow);
    auto standby = Start({"--coordinator", server_->address(), "--advertise", slow_link_->address()});
    if (!standby.ok()) return standby.status();
    standby_ = *std::move(standby);
    if (absl::Status status = slow_link_->SetTarget(standby_->address()); !status.ok()) return status;
    auto link = CoordinatorLink::Connect(server_->address(), absl::Seconds(20));
    if (!link.ok()) return link.status();
    link_ = *std::move(link);
    OracleJob job;
    job.client.coordinator = server_->address();
    job.client.job = "big";
    job.client.policy.mutable_async();
    job.client.durability.set_mode(v1::Durability::STANDBY);
    job.client.shared_memory = false;
    job.client.channels_per_shard = 1;
    job.client.retry_timeout = job.client.wait_timeout = absl::Minutes(5);
    job.workers = options_.workers;
    job.pushes = 1000000000;
    job.tensors = kTensors;
    job.elements = options_.elements;
    job.idle_mib = options_.state_mib;
    counts_.state_bytes = (uint64_t{options_.state_mib} << 20) + kTensors * options_.elements * sizeof(float);
    counts_.seconds_of_link = static_cast<double>(counts_.state_bytes) / options_.bytes_per_second;
    begun_ = absl::Now();
    auto oracle = PushOracle::Start(std::move(job));
    if (!oracle.ok()) return oracle.status();
    oracle_ = *std::move(oracle);
    return absl::OkStatus();
  }

  absl::Status AwaitInStep() {
    const absl::Time deadline = begun_ + options_.timeout;
    std::set<uint64_t> standbys;
    uint64_t done = 0;
    while (true) {
      const absl::StatusOr<v1::GetProgressResponse> progress = link_->GetProgress();
      if (!progress.ok()) return progress.status();
      bool in_step = false;
      for (const auto& member : progress->members()) {
        if (member.member().role() != v1::ROLE_STANDBY) continue;
        standbys.insert(member.member().incarnation());
        in_step = in_step || member.in_step();
        counts_.progress_reports += member.standby().bytes_done() > done;
        done = member.standby().bytes_done();
      }
      counts_.standbys = standbys.size();
      if (in_step) break;
      const absl::Time now = absl::Now();
      if (now >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("timed out after ", absl::FormatDuration(options_.timeout), " waiting for standby ",
                         standbys.size(), " to be in step; sent ", done, " of ", counts_.state_bytes, " bytes"));
      }
      const absl::StatusOr<absl::Time> next = oracle_->AwaitAcknowledgement(now, now + absl::Minutes(1));
      if (!next.ok()) return next.status();
      counts_.longest_gap_seconds = std::max(counts_.longest_gap_seconds, absl::ToDoubleSeconds(*next - now));
      Program::Hear({server_->program(), standby_->program()}, absl::Now() + absl::Milliseconds(50));
    }
    counts_.seconds_to_step = absl::ToDoubleSeconds(absl::Now() - begun_);
    counts_.pushes_behind = oracle_->acknowledged();
    counts_.push_bytes_per_second =
        counts_.pushes_behind * kTensors * options_.elements * sizeof(float) / counts_.seconds_to_step;
    return absl::OkStatus();
  }

  void CountLines() {
    for (const absl::string_view line : absl::StrSplit(server_->output(), '\n')) {
      counts_.progress_lines += absl::StrContains(line, "catching up: ");
    }
  }

  // Restarts the coordinator's process, because it alone decides which server serves.
  absl::Status TakeOver() {
    link_.reset();
    if (absl::Status status = server_->Kill(); !status.ok()) return status;
    const absl::Time killed = absl::Now();
    if (absl::Status status = server_->Restart(); !status.ok()) return status;
    return oracle_->AwaitAcknowledgement(killed + absl::Milliseconds(50), killed + absl::Minutes(1)).status();
  }

  const BigShardOptions options_;
  BigShardCounts counts_;
  absl::Time begun_;
  std::unique_ptr<ServerProcess> server_, standby_;
  std::unique_ptr<FaultProxy> slow_link_;
  std::unique_ptr<CoordinatorLink> link_;
  std::unique_ptr<PushOracle> oracle_;
};

}  // namespace

bool BigShardCounts::good() const {
  const uint64_t most = state_bytes + kBytesInFlight + kOtherBytes;
  return standbys == 1 && pushes_behind > 0 && longest_gap_seconds <= kMaxGapSeconds && progress_reports > 0 &&
         server_peak_bytes <= most && standby_peak_bytes <= most && pushes_lost == 0 && pushes_duplicated == 0 &&
         wrong_weights == 0;
}

nlohmann::ordered_json BigShardCounts::ToJson() const {
  return {{"state_bytes", state_bytes},
          {"seconds_to_step", seconds_to_step},
          {"seconds_of_link", seconds_of_link},
          {"standbys", standbys},
          {"progress_reports", progress_reports},
          {"progress_lines", progress_lines},
          {"pushes_behind", pushes_behind},
          {"push_bytes_per_second", push_bytes_per_second},
          {"longest_gap_seconds", longest_gap_seconds},
          {"server_peak_bytes", server_peak_bytes},
          {"standby_peak_bytes", standby_peak_bytes},
          {"pushes_acknowledged", pushes_acknowledged},
          {"pushes_lost", pushes_lost},
          {"pushes_duplicated", pushes_duplicated},
          {"wrong_weights", wrong_weights}};
}

absl::StatusOr<BigShardCounts> RunBigShard(const BigShardOptions& options) { return Run(options).Do(); }

}  // namespace ballast
