// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/executor.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/concurrency/named_thread.h"
#include "common/status/error_reason.h"

namespace ballast {

Executor::Executor(int threads, size_t max_queued) : max_queued_(max_queued), running_(threads) {
  threads_.reserve(threads);
  for (int i = 0; i < threads; ++i) threads_.push_back(NamedThread("executor", [this] { Run(); }));
}

void Executor::Shutdown() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

absl::Status Executor::Submit(Task task) {
  absl::MutexLock lock(&mutex_);
  if (running_ == 0) {
    return WithReason(v1::ERROR_REASON_DRAINING, absl::UnavailableError("got a task after shutdown"));
  }
  if (queue_.size() >= max_queued_) {
    return WithReason(v1::ERROR_REASON_SERVER_BUSY,
                      absl::ResourceExhaustedError(
                          absl::StrCat("got a task while ", queue_.size(), " are queued, want at most ", max_queued_)));
  }
  queue_.push_back(std::move(task));
  return absl::OkStatus();
}

void Executor::Run() {
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Executor::DueLocked));
      if (queue_.empty()) {
        --running_;
        return;
      }
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    std::move(task)();
  }
}

void ParallelFor(size_t count, int threads, absl::FunctionRef<void(size_t)> work) {
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t index = next.fetch_add(1); index < count; index = next.fetch_add(1)) work(index);
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) others.emplace_back(take);
  take();
  for (std::thread& other : others) other.join();
}

}  // namespace ballast
