// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

// Owns a few threads and a bounded queue of tasks, for work that must not run on the thread that asks for it: work
// whose duration depends on the amount of data, or on a disk. Invariant: tasks begin in the order in which they were
// submitted, so that one thread runs them one after another. Deliberately does not know what a task does.
// Thread safety: all methods may be called from any thread, Submit from within a task, too.
class Executor {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  // `max_queued`: tasks that may wait while all threads are busy.
  Executor(int threads, size_t max_queued);
  // As Shutdown.
  ~Executor() { Shutdown(); }
  Executor(const Executor&) = delete;

  // Takes the task, which some thread runs soon; does not wait. RESOURCE_EXHAUSTED while the queue is full: the task is
  // destroyed and does not run, and a retry is safe.
  // UNAVAILABLE after Shutdown.
  absl::Status Submit(Task task);

  // Runs what is queued, and what that submits, and waits for it. Takes nothing more then. Idempotent, by one thread
  // that is none of its own.
  void Shutdown();

 private:
  void Run();
  bool DueLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); }

  const size_t max_queued_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Threads that have not ended.
  int running_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace ballast
