// SPDX-License-Identifier: Apache-2.0
#include "worker/training/transfer_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/concurrency/await_within.h"
#include "common/concurrency/named_thread.h"

namespace ballast {
namespace {

// Interval at which the deliverer polls for responses, which may arrive in any order.
constexpr absl::Duration kPollInterval = absl::Milliseconds(1);

}  // namespace

std::unique_ptr<TransferPipeline> TransferPipeline::Create(bool threaded, size_t groups, Deliver deliver) {
  if (threaded) return std::make_unique<ThreadedPipeline>(groups, std::move(deliver));
  return std::make_unique<InlinePipeline>(groups, std::move(deliver));
}

absl::Status InlinePipeline::Begin(size_t group, Collect collect) {
  absl::StatusOr<Pushed> pushed = collect();
  if (pushed.ok()) pushed_[group] = *std::move(pushed);
  return pushed.status();
}

absl::Status InlinePipeline::Begin(size_t group, Future<PushResult> pushed) {
  pushed_[group] = std::move(pushed);
  return absl::OkStatus();
}

bool InlinePipeline::WaitFor(size_t group, absl::Duration timeout) {
  return !pushed_[group].has_value() || pushed_[group]->WaitFor(timeout);
}

absl::StatusOr<std::optional<PushResult>> InlinePipeline::Take(size_t group) {
  if (!pushed_[group].has_value()) return std::nullopt;
  const absl::StatusOr<PushResult> result = pushed_[group]->Get();
  if (!result.ok()) return result.status();
  pushed_[group].reset();
  if (absl::Status delivered = deliver_(group); !delivered.ok()) return delivered;
  return *result;
}

absl::Status InlinePipeline::Abandon(absl::Duration) {
  for (Pushed& pushed : pushed_) pushed.reset();
  return absl::OkStatus();
}

ThreadedPipeline::ThreadedPipeline(size_t groups, Deliver deliver)
    : deliver_(std::move(deliver)),
      entries_(groups),
      collector_(NamedThread("collector", [this] { CollectAll(); })),
      deliverer_(NamedThread("deliverer", [this] { DeliverAll(); })) {}

ThreadedPipeline::~ThreadedPipeline() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  collector_.join();
  deliverer_.join();
}

absl::Status ThreadedPipeline::Begin(size_t group, Collect collect) {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return status_;
  entries_[group].collect = std::move(collect);
  entries_[group].state = State::kToCollect;
  to_collect_.push_back(group);
  return absl::OkStatus();
}

absl::Status ThreadedPipeline::Begin(size_t group, Future<PushResult> pushed) {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return status_;
  entries_[group].pushed = std::move(pushed);
  entries_[group].state = State::kPushed;
  pushed_.push_back(group);
  return absl::OkStatus();
}

bool ThreadedPipeline::WaitFor(size_t group, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return entries_[group].state == State::kAtRest || !status_.ok();
  };
  return AwaitWithin(mutex_, absl::Condition(&over), timeout);
}

absl::StatusOr<std::optional<PushResult>> ThreadedPipeline::Take(size_t group) {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return status_;
  return std::exchange(entries_[group].result, std::nullopt);
}

absl::Status ThreadedPipeline::Abandon(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  abandoning_ = true;
  to_collect_.clear();
  pushed_.clear();
  const auto idle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout)) {
    return absl::DeadlineExceededError(
        absl::StrCat("timed out after ", absl::FormatDuration(timeout), " waiting for a copy to or from the device"));
  }
  abandoning_ = false;
  status_ = absl::OkStatus();
  for (Entry& entry : entries_) entry = Entry();
  return absl::OkStatus();
}

void ThreadedPipeline::CollectAll() {
  while (true) {
    size_t group = 0;
    Collect collect;
    {
      absl::MutexLock lock(&mutex_);
      const auto called = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !to_collect_.empty(); };
      mutex_.Await(absl::Condition(&called));
      if (stop_) return;
      group = to_collect_.front();
      to_collect_.pop_front();
      collect = std::move(entries_[group].collect);
      entries_[group].state = State::kCollecting;
      ++running_;
    }
    absl::StatusOr<Pushed> pushed = collect();
    absl::MutexLock lock(&mutex_);
    EndLocked(group, pushed.status());
    if (abandoning_ || !status_.ok() || !pushed->has_value()) continue;
    entries_[group].pushed = *std::move(pushed);
    entries_[group].state = State::kPushed;
    pushed_.push_back(group);
  }
}

void ThreadedPipeline::DeliverAll() {
  while (true) {
    std::optional<size_t> group;
    Pushed pushed;
    {
      absl::MutexLock lock(&mutex_);
      const auto called = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !pushed_.empty(); };
      mutex_.Await(absl::Condition(&called));
      if (stop_) return;
      group = AnsweredLocked();
      // A copy, because Abandon may drop the entry during the wait.
      pushed = entries_[group.value_or(pushed_.front())].pushed;
      if (group.has_value()) {
        pushed_.erase(std::find(pushed_.begin(), pushed_.end(), *group));
        entries_[*group].state = State::kDelivering;
        ++running_;
      }
    }
    if (!group.has_value()) {
      pushed->WaitFor(kPollInterval);
      continue;
    }
    const absl::StatusOr<PushResult> result = pushed->Get();
    const absl::Status status = result.ok() ? deliver_(*group) : result.status();
    absl::MutexLock lock(&mutex_);
    EndLocked(*group, status);
    if (status.ok()) entries_[*group].result = *result;
  }
}

std::optional<size_t> ThreadedPipeline::AnsweredLocked() const {
  std::optional<size_t> first;
  for (const size_t group : pushed_) {
    if ((!first.has_value() || group < *first) && entries_[group].pushed->Ready()) first = group;
  }
  return first;
}

void ThreadedPipeline::EndLocked(size_t group, const absl::Status& status) {
  --running_;
  entries_[group].pushed.reset();
  entries_[group].state = State::kAtRest;
  if (!status.ok() && !abandoning_) FailLocked(status);
}

void ThreadedPipeline::FailLocked(const absl::Status& status) {
  status_.Update(status);
  to_collect_.clear();
  pushed_.clear();
}

}  // namespace ballast
