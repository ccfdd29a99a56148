// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

// Owns a few threads and a bounded queue of tasks, for work that must not run on the caller's thread: work whose
// duration depends on the amount of data, or on a disk. Invariant: tasks start in the order of submission, so a
// single thread runs them one after another. Deliberately does not know what a task does. Thread safety: all methods
// may be called from any thread; a task may call Submit.
class Executor {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  // `max_queued` limits the tasks that wait while all threads are busy.
  Executor(int threads, size_t max_queued);
  // Same as Shutdown.
  ~Executor() { Shutdown(); }
  Executor(const Executor&) = delete;

  // Queues the task without blocking. RESOURCE_EXHAUSTED if the queue is full: the task is destroyed without running,
  // and a retry is safe. UNAVAILABLE after Shutdown.
  absl::Status Submit(Task task);

  // Runs all queued tasks and the ones that they submit, waits for them, then refuses new ones. Idempotent; call it
  // from one thread that is not the executor's own.
  void Shutdown();

 private:
  void Run();
  bool DueLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); }

  const size_t max_queued_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Number of threads that have not ended.
  int running_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

// Calls `work` once with each of 0 to count - 1, on this thread and up to threads - 1 others, in any order; returns
// when all calls have returned. `work` may be called from several threads at once.
void ParallelFor(size_t count, int threads, absl::FunctionRef<void(size_t)> work);

}  // namespace ballast
