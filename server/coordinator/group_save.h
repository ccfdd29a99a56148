// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/concurrency/executor.h"

namespace ballast {

// Saves a changing state on behalf of many callers: one save at a time, which serves every caller that came before it
// began. Waiting callers occupy no thread. Deliberately knows neither the state nor the disk. Thread safety: all
// methods may be called from any thread.
class GroupSave {
 public:
  using Done = std::function<void(absl::Status)>;
  // The result of a save, and the last change that it covers.
  struct Outcome {
    absl::Status status;
    uint64_t change = 0;
  };

  // `save` saves the state, `settle` does work for which no caller waits; the two never overlap. They run on the
  // executor, which must have stopped before this is destroyed, or without one on the thread of the first waiting
  // caller.
  GroupSave(Executor* executor, std::function<Outcome()> save, std::function<void()> settle)
      : executor_(executor), save_(std::move(save)), settle_(std::move(settle)) {}
  GroupSave(const GroupSave&) = delete;

  // Calls `done` once: with OK when that change is saved, otherwise with the error of the failed save. May call it
  // before returning. A retry saves again.
  void Await(uint64_t change, Done done);

  // The last change up to which all changes are saved.
  uint64_t saved() const;

 private:
  void Start();
  void Run();
  // Saves once; returns true if there is more to save.
  bool SaveOnce();
  std::vector<Done> TakeLocked(uint64_t change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Executor* const executor_;
  const std::function<Outcome()> save_;
  const std::function<void()> settle_;
  mutable absl::Mutex mutex_;
  uint64_t saved_ ABSL_GUARDED_BY(mutex_) = 0;
  // True from the first wait until no caller waits.
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  std::multimap<uint64_t, Done> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
