// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/model/trainable_model.h"

namespace ballast {

// One batch that several replicas of a model compute together, each in a thread of its own: who waits for whom. The
// first one, the leader, calls the training loop's hooks, when all replicas are as far as a hook promises: weights are
// set for all, the loss is that of all, gradients are summed. The first failure ends everybody's step. How long a wait
// takes is up to the devices: whoever is waited for waits for nothing but the leader, which ends with the hooks. Thread
// safety: each replica uses its own hooks; the rest may be called by any thread.
class ReplicaStep {
 public:
  // Sums a group's gradients over the replicas, in the leader's thread.
  using Sum = std::function<absl::Status(size_t group)>;

  // `hooks` outlive this.
  ReplicaStep(size_t replicas, StepHooks* hooks, Sum sum);

  // What replica r trains with; the leader is 0.
  StepHooks& hooks(size_t replica) { return *replicas_[replica]; }
  // Ends the step, where it is the first failure.
  void Fail(const absl::Status& status);
  // The first failure.
  absl::Status status() const;

 private:
  class Leader;
  class Follower;

  // What a replica has done; those before `forward_` may go forward.
  struct Progress {
    std::optional<BatchResult> result;
    // Gradients of this group and all after it are there.
    size_t backward = 0;
  };

  // Until the condition on progress holds, or somebody has failed.
  absl::Status Await(const std::function<bool()>& condition) ABSL_LOCKS_EXCLUDED(mutex_);

  StepHooks* const hooks_;
  const Sum sum_;
  mutable absl::Mutex mutex_;
  // Groups whose weights are set.
  size_t forward_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Progress> progress_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<StepHooks>> replicas_;
};

}  // namespace ballast
