// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// Owns a thread that runs one task at a time, to issue the operations of one device. The destructor waits for a running
// task. Thread safety: one thread calls Start and Wait.
class DeviceThread {
 public:
  DeviceThread();
  ~DeviceThread();
  DeviceThread(const DeviceThread&) = delete;

  // No task may be running.
  void Start(std::function<void()> task);
  // Waits until the task is done.
  void Wait();

 private:
  void Run();
  bool HasTask() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return task_.has_value() || ends_; }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !task_.has_value(); }

  absl::Mutex mutex_;
  // Set until the task is done.
  std::optional<std::function<void()>> task_ ABSL_GUARDED_BY(mutex_);
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Synchronizes one batch that several replicas of a model compute together, each on its own thread. The first replica,
// the leader, calls the training loop's hooks once all replicas have reached the state that a hook promises: parameters
// are set for all, the loss is that of all, gradients are summed. The first failure ends the step of all replicas.
// Waits last as long as the devices compute, and cannot deadlock: a follower waits only for the leader, which ends with
// the hooks. Thread safety: each replica uses its own hooks; any thread may call the rest.
class ReplicaStep {
 public:
  // Sums a group's gradients over the replicas; called on the leader's thread.
  using Sum = std::function<absl::Status(size_t group)>;

  // `hooks` must outlive this.
  ReplicaStep(size_t replicas, StepHooks* hooks, Sum sum);

  // Returns the hooks with which the replica trains; the leader is 0.
  StepHooks& hooks(size_t replica) { return *replicas_[replica]; }
  // Ends the step with `status` unless it has failed before.
  void Fail(const absl::Status& status);
  // Returns the first failure.
  absl::Status status() const;

 private:
  class Leader;
  class Follower;

  // Progress of one replica.
  struct Progress {
    std::optional<BatchResult> result;
    // Gradients of this group and all later ones are computed.
    size_t backward = 0;
  };

  // Waits until `condition`, which is called with the lock held, is true or a replica has failed.
  absl::Status Await(const std::function<bool()>& condition) ABSL_LOCKS_EXCLUDED(mutex_);

  StepHooks* const hooks_;
  const Sum sum_;
  mutable absl::Mutex mutex_;
  // Number of groups whose parameters are set, so that replicas may compute them.
  size_t forward_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Progress> progress_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<StepHooks>> replicas_;
};

}  // namespace ballast
