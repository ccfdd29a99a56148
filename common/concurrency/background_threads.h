// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/concurrency/named_thread.h"

namespace ballast {

// Counts threads that end by themselves, for an owner that cannot join each of them: because the thread that learns of
// the end may be the one that ends. Thread safety: all methods may be called from any thread; the destructor returns
// after every thread's function, so it must not run in one of them.
class BackgroundThreads {
 public:
  BackgroundThreads() = default;
  BackgroundThreads(const BackgroundThreads&) = delete;
  ~BackgroundThreads() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* running) { return *running == 0; }, &running_));
  }

  // For `name`, see NamedThread.
  template <size_t kBytes>
  void Start(const char (&name)[kBytes], std::function<void()> run) {
    absl::MutexLock lock(&mutex_);
    ++running_;
    NamedThread(name, [this, run = std::move(run)]() mutable {
      run();
      // Destroy what it captured before the owner can go on.
      run = nullptr;
      absl::MutexLock lock(&mutex_);
      --running_;
    }).detach();
  }

 private:
  absl::Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ballast
