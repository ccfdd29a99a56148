// SPDX-License-Identifier: Apache-2.0
#include "bench/simulation.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "bench/peers/child_server.h"
#include "client/client.h"

namespace ballast {
namespace {

constexpr uint32_t kTensor = 1;
constexpr int64_t kElements = 64 * 1024;
constexpr int kLocalSteps = 4;
constexpr double kWarmUpShare = 0.25;

// Ends all workers at the same time.
class Ending {
 public:
  // Returns true if the run ended before `until`.
  bool Wait(absl::Time until) { return notification_.WaitForNotificationWithDeadline(until); }
  bool over() const { return notification_.HasBeenNotified(); }
  // The first failure ends the run for all workers.
  void End(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (notification_.HasBeenNotified()) return;
    status_ = status;
    notification_.Notify();
  }
  absl::Status status() {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::Notification notification_;
};

// One worker's loop. Thread safety: confined to its thread.
class Loop {
 public:
  Loop(Client* client, int steps_per_push, absl::Duration compute, Ending* ending)
      : client_(client), steps_per_push_(steps_per_push), compute_(compute), ending_(ending) {}

  absl::Status Run(absl::Time count_from) {
    std::vector<float> gradient(kElements, 1e-3f), values(kElements);
    for (uint64_t push = 0;; ++push) {
      if (ending_->Wait(absl::Now() + compute_ * steps_per_push_)) return absl::OkStatus();
      const absl::Time begin = absl::Now();
      const auto result = client_->PushPull(push, 1, {{kTensor, gradient}}, {{kTensor, absl::MakeSpan(values)}}).Get();
      if (ending_->over()) return absl::OkStatus();
      if (!result.ok()) return result.status();
      if (const absl::Time now = absl::Now(); now >= count_from) Count(*result, begin, now);
    }
  }

  SimulatedWorker Found() const {
    SimulatedWorker found = found_;
    // Measured from one completion to another, so that neither the warm-up nor an unfinished step distorts the rate.
    const double spanned = absl::ToDoubleSeconds(last_ - first_);
    if (found_.pushes > 1 && spanned > 0) {
      found.steps_per_second = static_cast<double>(found_.pushes - 1) * steps_per_push_ / spanned;
      found.exchange_share = std::min(1.0, absl::ToDoubleSeconds(exchanged_) / spanned);
    }
    if (applied_ > 0) found.mean_staleness = staleness_sum_ / static_cast<double>(applied_);
    return found;
  }

 private:
  void Count(const PushResult& result, absl::Time begin, absl::Time now) {
    if (found_.pushes++ == 0) {
      first_ = now;
    } else {
      exchanged_ += now - begin;
    }
    last_ = now;
    if (result.dropped > 0) ++found_.dropped;
    if (result.applied == 0) return;
    ++applied_;
    staleness_sum_ += static_cast<double>(result.max_staleness);
    found_.max_staleness = std::max(found_.max_staleness, result.max_staleness);
  }

  Client* const client_;
  const int steps_per_push_;
  const absl::Duration compute_;
  Ending* const ending_;
  SimulatedWorker found_;
  absl::Time first_, last_;
  absl::Duration exchanged_;
  uint64_t applied_ = 0;
  double staleness_sum_ = 0;
};

absl::StatusOr<std::unique_ptr<Client>> Join(const std::string& address, const SimulatedMode& mode, size_t workers,
                                             size_t rank) {
  ClientOptions options;
  options.coordinator = address;
  options.job = "simulation";
  options.policy = mode.policy;
  options.workers = workers;
  options.worker = rank;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
  if (!client.ok()) return client;
  v1::TensorSpec spec;
  spec.set_id(kTensor);
  spec.set_name("weight");
  spec.add_shape(kElements);
  spec.mutable_initializer()->mutable_zeros();
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  if (absl::Status status = (*client)->Declare({spec}); !status.ok()) return status;
  return client;
}

}  // namespace

std::vector<std::string> ModeNames() { return {"sync", "async", "bounded", "quorum", "local_sgd"}; }

std::vector<SimulatedMode> AllModes(int workers, int staleness) {
  std::vector<SimulatedMode> modes;
  for (const std::string& name : ModeNames()) modes.push_back({name, {}, 1});
  modes[0].policy.mutable_sync();
  modes[1].policy.mutable_async();
  modes[2].policy.mutable_bounded()->set_steps_ahead(staleness);
  modes[3].policy.mutable_sync()->set_quorum(std::max(1, workers - 1));
  modes[4].policy.mutable_local_sgd()->set_local_steps(kLocalSteps);
  modes[4].policy.mutable_local_sgd()->set_learning_rate(0.1f);
  modes[4].steps_per_push = kLocalSteps;
  return modes;
}

absl::StatusOr<std::vector<SimulatedWorker>> Simulate(const SimulatedMode& mode,
                                                      const std::vector<absl::Duration>& compute, double seconds) {
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(mode.name, " of ", compute.size(), ": ", status.message()));
  };
  absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
  if (!folder.ok()) return folder.status();
  const auto servers = StartServers(1, static_cast<int>(compute.size()), *folder);
  if (!servers.ok()) return named(servers.status());
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t rank = 0; rank < compute.size(); ++rank) {
    auto client = Join((*servers)[0].address(), mode, compute.size(), rank);
    if (!client.ok()) return named(client.status());
    clients.push_back(*std::move(client));
  }
  Ending ending;
  const absl::Time begin = absl::Now();
  std::vector<Loop> loops;
  for (size_t rank = 0; rank < compute.size(); ++rank) {
    loops.emplace_back(clients[rank].get(), mode.steps_per_push, compute[rank], &ending);
  }
  std::vector<std::thread> threads;
  for (Loop& loop : loops) {
    threads.emplace_back([&] {
      if (absl::Status status = loop.Run(begin + absl::Seconds(seconds * kWarmUpShare)); !status.ok()) {
        ending.End(status);
      }
    });
  }
  ending.Wait(begin + absl::Seconds(seconds));
  ending.End(absl::OkStatus());
  // Releases workers that wait for workers that have ended.
  for (const auto& client : clients) client->Shutdown("the measurement is over");
  for (std::thread& thread : threads) thread.join();
  if (absl::Status status = ending.status(); !status.ok()) return named(status);
  std::vector<SimulatedWorker> found;
  for (const Loop& loop : loops) found.push_back(loop.Found());
  return found;
}

double TotalRate(const std::vector<SimulatedWorker>& workers) {
  return std::accumulate(workers.begin(), workers.end(), 0.0,
                         [](double sum, const SimulatedWorker& worker) { return sum + worker.steps_per_second; });
}

}  // namespace ballast
