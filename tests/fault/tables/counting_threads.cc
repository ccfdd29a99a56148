// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/tables/counting_threads.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ballast {

// A worker with the ledger of its own pushes, which only its thread uses during a shift.
struct CountingThreads::Thread : public PushObserver {
  explicit Thread(CountingThreads* all) : all(all), ledger(CountingTables().size()) {}

  absl::StatusOr<bool> Begin(uint64_t number) override { return all->MayBegin(number); }
  absl::Status Acknowledge(uint64_t, const RowUses& uses, const RowsResult& result) override {
    if (!all->sync_) ledger.Add(uses);
    ++counts.pushes;
    counts.retries += result.retries;
    counts.duplicates += result.duplicate;
    all->OnAcknowledged();
    return absl::OkStatus();
  }

  CountingThreads* const all;
  RowLedger ledger;
  Counts counts;
  std::unique_ptr<CountingWorker> worker;
  std::thread thread;
};

absl::StatusOr<std::unique_ptr<CountingThreads>> CountingThreads::Connect(const CountingWorkerOptions& options,
                                                                          uint32_t threads) {
  std::unique_ptr<CountingThreads> all(new CountingThreads);
  all->sync_ = options.client.policy.has_sync();
  for (uint32_t rank = 0; rank < threads; ++rank) {
    CountingWorkerOptions own = options;
    own.client.worker = rank;
    own.client.shared_memory = rank % 2 == 1;
    auto worker = CountingWorker::Connect(std::move(own));
    if (!worker.ok()) return worker.status();
    all->threads_.push_back(std::make_unique<Thread>(all.get()));
    all->threads_.back()->worker = *std::move(worker);
  }
  return all;
}

CountingThreads::~CountingThreads() { static_cast<void>(End()); }

void CountingThreads::Begin() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = false;
  }
  for (auto& thread : threads_) {
    thread->thread = std::thread([this, own = thread.get()] { OnEnd(own->worker->Run(*own)); });
  }
}

bool CountingThreads::MayBegin(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  // The others wait at a step that one worker has begun.
  const bool others_wait = sync_ && number < begun_;
  if (!status_.ok() || (stopped_ && !others_wait)) return false;
  begun_ = std::max(begun_, number + 1);
  return true;
}

void CountingThreads::OnAcknowledged() {
  absl::MutexLock lock(&mutex_);
  last_ = absl::Now();
}

void CountingThreads::OnEnd(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  status_.Update(status);
}

absl::StatusOr<absl::Time> CountingThreads::AwaitAcknowledgement(absl::Time since, absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto seen = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return last_ >= since || !status_.ok(); };
  if (!mutex_.AwaitWithDeadline(absl::Condition(&seen), deadline)) {
    return absl::DeadlineExceededError(absl::StrCat("no push of rows was acknowledged from ", absl::FormatTime(since),
                                                    " to ", absl::FormatTime(deadline)));
  }
  if (!status_.ok()) return status_;
  return last_;
}

absl::Status CountingThreads::End() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  for (auto& thread : threads_) {
    if (thread->thread.joinable()) thread->thread.join();
  }
  absl::MutexLock lock(&mutex_);
  return status_;
}

RowLedger CountingThreads::ledger() const {
  // All synchronous workers know all steps.
  if (sync_) return threads_[0]->worker->steps();
  RowLedger all(CountingTables().size());
  for (const auto& thread : threads_) all.Add(thread->ledger);
  return all;
}

CountingThreads::Counts CountingThreads::counts() const {
  Counts all;
  for (const auto& thread : threads_) {
    all.pushes += thread->counts.pushes;
    all.retries += thread->counts.retries;
    all.duplicates += thread->counts.duplicates;
  }
  return all;
}

LedgerReport CountingThreads::pulled() const {
  LedgerReport all;
  for (const auto& thread : threads_) all.Add(thread->worker->pulled());
  return all;
}

}  // namespace ballast
