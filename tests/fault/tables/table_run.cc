// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "tests/fault/oracle/server_fleet.h"
#include "tests/fault/tables/counting_process.h"
#include "tests/fault/tables/counting_threads.h"
#include "tests/fault/tables/row_reader.h"
#include "tests/fault/tables/table_faults.h"

namespace ballast {
namespace {

// Responses of a killed server may still arrive for this long.
constexpr absl::Duration kMaxResponseDelay = absl::Milliseconds(50);

class Run {
 public:
  explicit Run(const TableFaultOptions& options)
      : options_(options), draw_(options.seed, options.rows, options.servers), random_(options.seed) {}

  absl::StatusOr<TableFaultCounts> Do() {
    const absl::Time end = absl::Now() + options_.time;
    if (absl::Status status = Begin(); !status.ok()) return status;
    do {
      if (absl::Status status = Shift(std::min(end, absl::Now() + options_.check_every)); !status.ok()) return status;
    } while (counts_.kills < options_.kills && absl::Now() < end);
    Count();
    processes_.clear();
    threads_.reset();
    if (absl::Status status = fleet_->End(); !status.ok()) return status;
    return counts_;
  }

 private:
  absl::Status Begin() {
    const uint32_t processes = options_.sync ? 0 : options_.processes;
    job_.workers = options_.threads + processes;
    auto fleet = ServerFleet::Start({.server = options_.server,
                                     .servers = options_.servers,
                                     .workers = job_.workers,
                                     .durability = options_.durability,
                                     .state_folder = options_.folder});
    if (!fleet.ok()) return fleet.status();
    fleet_ = *std::move(fleet);
    job_.servers = fleet_->addresses();
    job_.coordinator = fleet_->coordinator();
    job_.durability = options_.durability;
    job_.sync = options_.sync;
    auto threads = CountingThreads::Connect(
        {.client = ClientOf(job_), .seed = options_.seed, .rows = options_.rows, .servers = options_.servers},
        options_.threads);
    if (!threads.ok()) return threads.status();
    threads_ = *std::move(threads);
    for (uint32_t i = 0; i < processes; ++i) {
      const uint32_t worker = options_.threads + i;
      const std::string folder = absl::StrCat(options_.folder, "/worker-", worker);
      std::filesystem::create_directories(folder);
      processes_.push_back(
          std::make_unique<CountingProcess>(CountingProcess::Options{.program = options_.counting_worker,
                                                                     .folder = folder,
                                                                     .job = job_,
                                                                     .worker = worker,
                                                                     .seed = options_.seed,
                                                                     .rows = options_.rows,
                                                                     .servers = options_.servers,
                                                                     .timeout = options_.timeout}));
    }
    return absl::OkStatus();
  }

  // Pushes and kills until `end`, then reads all rows.
  absl::Status Shift(absl::Time end) {
    threads_->Begin();
    for (auto& process : processes_) {
      if (absl::Status status = process->Start(); !status.ok()) return status;
    }
    if (absl::Status status = AwaitWork(absl::InfinitePast(), absl::Now(), nullptr); !status.ok()) return status;
    while (true) {
      const absl::Time kill_at = absl::Now() + Pause();
      // Only an error ends this wait early.
      const auto failed = threads_->AwaitAcknowledgement(absl::InfiniteFuture(), std::min(kill_at, end));
      if (!absl::IsDeadlineExceeded(failed.status())) return failed.status();
      if (absl::Now() >= end || counts_.kills >= options_.kills) break;
      if (absl::Status status = KillServer(); !status.ok()) return status;
      if (counts_.kills % options_.kills_per_process != 0) continue;
      for (auto& process : processes_) {
        if (absl::Status status = process->Kill(); !status.ok()) return status;
        if (absl::Status status = process->Start(); !status.ok()) return status;
      }
    }
    for (auto& process : processes_) {
      if (absl::Status status = process->Kill(); !status.ok()) return status;
    }
    if (absl::Status status = threads_->End(); !status.ok()) return status;
    return Check();
  }

  absl::Duration Pause() { return options_.kill_every * std::uniform_real_distribution<double>(0, 2)(random_); }

  absl::Status KillServer() {
    if (absl::Status status = fleet_->AwaitSpares(options_.timeout); !status.ok()) return status;
    const absl::Time killed = absl::Now();
    if (absl::Status status = fleet_->KillNext(); !status.ok()) return status;
    ++counts_.kills;
    const bool goes_on = fleet_->GoesOnWithout();
    if (goes_on) {
      const absl::Status status = AwaitWork(killed, absl::Now() + kMaxResponseDelay, &counts_.recovery_seconds);
      if (!status.ok()) return status;
    }
    if (absl::Status status = fleet_->Restart(); !status.ok()) return status;
    ++counts_.restarts;
    return goes_on ? absl::OkStatus() : AwaitWork(killed, absl::Now(), &counts_.recovery_seconds);
  }

  // Records the time from `since` to the first push acknowledged from `begin` on, if `seconds` is set. Counts a hang;
  // an error ends the run.
  absl::Status AwaitWork(absl::Time since, absl::Time begin, std::vector<double>* seconds) {
    const auto works = threads_->AwaitAcknowledgement(begin, begin + options_.timeout);
    if (works.ok()) {
      if (seconds != nullptr) seconds->push_back(absl::ToDoubleSeconds(*works - since));
      return absl::OkStatus();
    }
    if (!absl::IsDeadlineExceeded(works.status())) return works.status();
    ++counts_.hangs;
    return absl::OkStatus();
  }

  // Compares every row with the ledgers; nobody pushes.
  absl::Status Check() {
    RowLedger ledger = threads_->ledger();
    for (const auto& process : processes_) ledger.Add(process->ledger());
    const absl::StatusOr<LedgerReport> report = CompareAllRows(job_, draw_.rows(), ledger);
    if (!report.ok()) return report.status();
    ++counts_.checks;
    counts_.rows_checked += report->rows_checked;
    counts_.rows_wrong += report->rows_wrong;
    if (counts_.first_wrong.empty()) counts_.first_wrong = report->first_wrong;
    return absl::OkStatus();
  }

  void Count() {
    const CountingThreads::Counts threads = threads_->counts();
    counts_.pushes_acknowledged = threads.pushes;
    counts_.retries = threads.retries;
    counts_.duplicates_refused = threads.duplicates;
    const LedgerReport pulled = threads_->pulled();
    counts_.rows_pulled = pulled.rows_checked;
    counts_.rows_pulled_wrong = pulled.rows_wrong;
    if (counts_.first_wrong.empty()) counts_.first_wrong = pulled.first_wrong;
    for (const auto& process : processes_) {
      counts_.worker_kills += process->counts().kills;
      counts_.pushes_acknowledged += process->counts().pushes;
      counts_.unknown_applied += process->counts().unknown_applied;
      counts_.unknown_lost += process->counts().unknown_lost;
    }
  }

  const TableFaultOptions options_;
  const RowDraw draw_;
  std::mt19937_64 random_;
  CountingJob job_;
  TableFaultCounts counts_;
  std::unique_ptr<ServerFleet> fleet_;
  std::unique_ptr<CountingThreads> threads_;
  std::vector<std::unique_ptr<CountingProcess>> processes_;
};

}  // namespace

nlohmann::ordered_json TableFaultCounts::ToJson() const {
  nlohmann::ordered_json json = JsonOf(*this);
  AddQuantiles("recovery_seconds", recovery_seconds, json);
  if (!first_wrong.empty()) json["first_wrong"] = first_wrong;
  return json;
}

absl::StatusOr<TableFaultCounts> CountRowsUnderKills(const TableFaultOptions& options) { return Run(options).Do(); }

}  // namespace ballast
