// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "client/coordinator_link.h"
#include "tests/fault/jobs/job_faults.h"
#include "tests/fault/jobs/job_files.h"
#include "tests/fault/jobs/job_processes.h"

namespace ballast {
namespace {

constexpr char kJob[] = "worker_kills";
// Push messages, of all layers to all shards: some steps, and more than can be in flight at once.
constexpr uint64_t kSomeSteps = 40;
constexpr absl::Duration kTick = absl::Milliseconds(10);

class Run {
 public:
  explicit Run(const WorkerKillOptions& options)
      : options_(options), end_(absl::Now() + options.time), processes_(Processes(options)) {}

  absl::StatusOr<WorkerKillCounts> Do() {
    if (absl::Status status = Begin(); !status.ok()) return status;
    do {
      if (absl::Status status = Round(counts_.rounds % options_.workers); !status.ok()) return status;
      if (absl::Status status = Compare(/*ended=*/false); !status.ok()) return status;
    } while (counts_.rounds < options_.rounds && absl::Now() < end_);
    if (absl::Status status = processes_.EndWorkers(); !status.ok()) return status;
    if (absl::Status status = Compare(/*ended=*/true); !status.ok()) return status;
    client_.reset();
    link_.reset();
    if (absl::Status status = processes_.EndServers(); !status.ok()) return status;
    return counts_;
  }

 private:
  // Pushes that all shards together have from a worker.
  struct Pushed {
    // Newest incarnation of the worker.
    uint64_t incarnation = 0;
    uint64_t messages = 0;
  };
  using PushedByWorker = std::vector<Pushed>;

  static JobProcessesOptions Processes(const WorkerKillOptions& options) {
    return {.server = options.server,
            .worker = options.worker,
            .job_file = options.folder + "/job.textproto",
            .run_dir = options.folder + "/run",
            .workers = options.workers};
  }

  absl::Status Begin() {
    const auto job = WriteJobFolder(options_.folder, {.name = kJob, .policy = options_.policy});
    if (!job.ok()) return job.status();
    if (absl::Status status = processes_.StartServers(); !status.ok()) return status;
    if (absl::Status status = processes_.StartWorkers(); !status.ok()) return status;
    ClientOptions options;
    options.shards = processes_.addresses();
    options.job = kJob;
    auto client = Client::Connect(std::move(options));
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    auto link = CoordinatorLink::Connect(processes_.addresses()[0], absl::Seconds(20));
    if (!link.ok()) return link.status();
    link_ = *std::move(link);
    const absl::StatusOr<bool> all = AwaitPushes([](const PushedByWorker& now) {
      return std::all_of(now.begin(), now.end(), [](const Pushed& one) { return one.messages >= kSomeSteps; });
    });
    if (!all.ok()) return all.status();
    return *all ? absl::OkStatus() : absl::DeadlineExceededError("timed out waiting for the workers to begin");
  }

  absl::StatusOr<PushedByWorker> Look() {
    const auto shards = client_->GetStatus();
    if (!shards.ok()) return shards.status();
    PushedByWorker pushed(options_.workers);
    for (const v1::GetStatusResponse& shard : *shards) {
      for (const v1::GetStatusResponse::WorkerPushes& worker : shard.worker_pushes()) {
        if (worker.worker() >= pushed.size()) continue;
        Pushed& one = pushed[worker.worker()];
        // A shard may not know the newest incarnation yet.
        if (worker.incarnation() < one.incarnation) continue;
        if (worker.incarnation() > one.incarnation) one = {worker.incarnation(), 0};
        one.messages += worker.accepted_of_incarnation();
      }
    }
    return pushed;
  }

  // Returns true if `done` holds before the timeout.
  absl::StatusOr<bool> AwaitPushes(const std::function<bool(const PushedByWorker&)>& done) {
    const absl::Time deadline = absl::Now() + options_.timeout;
    while (true) {
      const absl::StatusOr<PushedByWorker> now = Look();
      if (!now.ok()) return now.status();
      if (done(*now)) return true;
      if (absl::Now() >= deadline) return false;
      processes_.Hear(absl::Now() + kTick);
      for (uint32_t rank = 0; rank < options_.workers; ++rank) {
        Program& worker = processes_.worker(rank);
        if (killed_ == &worker || worker.Runs()) continue;
        return absl::InternalError(absl::StrCat("worker ", rank, " ended by itself; output:\n", worker.output()));
      }
    }
  }

  absl::Status Round(uint32_t victim) {
    const absl::Time killed = absl::Now();
    killed_ = &processes_.worker(victim);
    if (absl::Status status = killed_->Kill(); !status.ok()) return status;
    const absl::StatusOr<PushedByWorker> then = Look();
    if (!then.ok()) return then.status();
    ++counts_.rounds;
    const absl::StatusOr<bool> went_on = AwaitPushes([&](const PushedByWorker& now) {
      for (uint32_t rank = 0; rank < options_.workers; ++rank) {
        if (rank != victim && now[rank].messages < (*then)[rank].messages + kSomeSteps) return false;
      }
      return true;
    });
    if (!went_on.ok()) return went_on.status();
    Note(*went_on, killed, counts_.others_seconds);
    if (absl::Status status = processes_.StartWorker(victim); !status.ok()) return status;
    killed_ = nullptr;
    const absl::StatusOr<bool> returned = AwaitPushes([&](const PushedByWorker& now) {
      return now[victim].incarnation > (*then)[victim].incarnation && now[victim].messages >= kSomeSteps;
    });
    if (!returned.ok()) return returned.status();
    Note(*returned, killed, counts_.return_seconds);
    return absl::OkStatus();
  }

  void Note(bool came, absl::Time since, std::vector<double>& seconds) {
    if (came) {
      seconds.push_back(absl::ToDoubleSeconds(absl::Now() - since));
    } else {
      ++counts_.hangs;
    }
  }

  // Compares acknowledged pushes with the shards'. Asked in this order, shards may have more from live workers.
  absl::Status Compare(bool ended) {
    const absl::StatusOr<v1::GetProgressResponse> told = link_->GetProgress();
    if (!told.ok()) return told.status();
    const auto shards = client_->GetStatus();
    if (!shards.ok()) return shards.status();
    uint64_t accepted = 0, lost = 0, duplicated = 0, missing = 0;
    for (const v1::GetStatusResponse& shard : *shards) {
      const int rank = static_cast<int>(shard.shard());
      for (const v1::GetStatusResponse::WorkerPushes& worker : shard.worker_pushes()) {
        uint64_t of_incarnation = 0, before = 0;
        for (const v1::GetProgressResponse::WorkerPushes& report : told->pushes()) {
          if (report.worker() != worker.worker() || rank >= report.acknowledged_size()) continue;
          (report.incarnation() == worker.incarnation() ? of_incarnation : before) += report.acknowledged(rank);
        }
        const uint64_t accepted_before = worker.accepted() - worker.accepted_of_incarnation();
        accepted += worker.accepted();
        lost += Excess(of_incarnation, worker.accepted_of_incarnation()) + Excess(before, accepted_before);
        duplicated += Excess(worker.accepted_of_incarnation(), worker.highest_sequence());
        if (ended) missing += Excess(worker.highest_sequence(), worker.accepted_of_incarnation());
      }
    }
    counts_.pushes_accepted = accepted;
    counts_.pushes_lost = std::max(counts_.pushes_lost, lost);
    counts_.pushes_duplicated = std::max(counts_.pushes_duplicated, duplicated);
    counts_.pushes_missing = missing;
    return absl::OkStatus();
  }

  static uint64_t Excess(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

  const WorkerKillOptions options_;
  const absl::Time end_;
  JobProcesses processes_;
  // The worker that has ended and has no successor yet.
  Program* killed_ = nullptr;
  std::unique_ptr<Client> client_;
  std::unique_ptr<CoordinatorLink> link_;
  WorkerKillCounts counts_;
};

}  // namespace

nlohmann::ordered_json WorkerKillCounts::ToJson() const {
  nlohmann::ordered_json json = JsonOf(*this);
  AddQuantiles("others_go_on_seconds", others_seconds, json);
  AddQuantiles("return_seconds", return_seconds, json);
  return json;
}

absl::StatusOr<WorkerKillCounts> KillWorkers(const WorkerKillOptions& options) { return Run(options).Do(); }

}  // namespace ballast
