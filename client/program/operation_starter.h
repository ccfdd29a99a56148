// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

// Owns a thread that starts operations in the order in which they are given to it: a send copies gradients into shared
// memory and starts calls, which would take the time of a caller that computes. The destructor starts all that are
// left. Thread safety: any thread may call Start.
class OperationStarter {
 public:
  OperationStarter() : thread_([this] { Run(); }) {}
  ~OperationStarter() {
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
    }
    thread_.join();
  }
  void Start(std::function<void()> operation) {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back(std::move(operation));
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> next;
      {
        absl::MutexLock lock(&mutex_);
        const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !waiting_.empty() || closed_; };
        mutex_.Await(absl::Condition(&some));
        if (waiting_.empty()) return;
        next = std::move(waiting_.front());
        waiting_.pop_front();
      }
      next();
    }
  }

  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  // Declared last, because it uses the others.
  std::thread thread_;
};

}  // namespace ballast
