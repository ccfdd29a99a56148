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

// Saves a state that changes for all who wait for it: one save at a time, which serves everyone who came before it
// began. Whoever waits takes no thread. Deliberately knows neither the state nor the disk. Thread safety: all methods
// may be called from any thread.
class GroupSave {
 public:
  using Done = std::function<void(absl::Status)>;
  // What a save came to: up to which change the state is saved, or would have been.
  struct Outcome {
    absl::Status status;
    uint64_t change = 0;
  };

  // `save` saves the state as it is, `settle` does what nobody need wait for; never two of them at once. They run on
  // the executor, which must not run them any more when this ends; null: on the thread that waits first.
  GroupSave(Executor* executor, std::function<Outcome()> save, std::function<void()> settle)
      : executor_(executor), save_(std::move(save)), settle_(std::move(settle)) {}
  GroupSave(const GroupSave&) = delete;

  // Calls `done` once: with OK when that change is saved, with the error of the save that failed otherwise. May call it
  // before returning. A retry saves again.
  void Await(uint64_t change, Done done);

  // All changes up to it are saved.
  uint64_t saved() const;

 private:
  void Start();
  void Run();
  // Saves once; whether there is more to save.
  bool SaveOnce();
  std::vector<Done> TakeLocked(uint64_t change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Executor* const executor_;
  const std::function<Outcome()> save_;
  const std::function<void()> settle_;
  mutable absl::Mutex mutex_;
  uint64_t saved_ ABSL_GUARDED_BY(mutex_) = 0;
  // From the first wait until nobody waits.
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  std::multimap<uint64_t, Done> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
