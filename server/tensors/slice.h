// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/concurrency/wait_list.h"
#include "server/policies/slice_policy.h"
#include "server/weights/slice_weights.h"

namespace ballast {

// What a pull reads of a slice. Later updates leave the values as they are.
struct PulledValues {
  uint64_t version = 0;
  ValueBuffer values;
};

// A slice's state at one moment, its values shared with the slice.
struct SliceState {
  SliceWeights::State weights;
  PolicyState policy;
};

// A slice that many workers push to and pull from: weights, the policy that guards them, and the pulls that wait.
// Knows nothing of its siblings. Thread safety: all methods may be called from any thread.
class Slice {
 public:
  // `provided`: its values come by SetValues, and nobody may pull or push before.
  Slice(std::string tensor, const v1::SliceRange& range, std::unique_ptr<SliceWeights> weights,
        std::unique_ptr<SlicePolicy> policy, bool provided = false)
      : tensor_(std::move(tensor)),
        range_(range),
        provided_(provided),
        weights_(std::move(weights)),
        policy_(std::move(policy)) {}

  struct Applied {
    PushDisposition disposition = PushDisposition::kBuffered;
    // Version at apply minus the version that the gradient was computed from; 0 unless applied.
    uint64_t staleness = 0;
    float learning_rate = 0;
    // Waits that the update lets go on: the caller reports them to the wait room, outside all locks.
    std::vector<WaitList::Ticket> released;
  };

  // As SlicePolicy::CheckStep; FAILED_PRECONDITION too while the values are still to be provided.
  absl::Status CheckStep(uint64_t step) const;

  // Whether values of that checksum may be set; false: they were. FAILED_PRECONDITION where others were, or a push was
  // taken.
  absl::StatusOr<bool> CheckValues(uint64_t checksum) const;

  // Sets the first values, as many as the slice has; answers the waits that may go on. CheckValues allowed it, and the
  // slice has not changed since.
  std::vector<WaitList::Ticket> SetValues(ValueBuffer values, uint64_t checksum);

  // False while the values are still to be provided.
  bool HasValues() const;

  // Where changes must come in a certain order: the next place in it. The change that takes it must come, and soon, for
  // all later ones wait for it. Places at several slices are taken in the same order at each.
  uint64_t ReserveOrder() { return next_order_.fetch_add(1); }

  // `order`: its place, where changes have one.
  Applied Offer(const Contribution& contribution, std::optional<uint64_t> order);

  // As SlicePolicy::Pause; answers the waits that may go on.
  std::vector<WaitList::Ticket> Pause(uint32_t worker, std::optional<uint64_t> order);

  // As SlicePolicy::CatchUp.
  struct CaughtUp {
    // By how many updates the slice knew less.
    uint64_t lost_updates = 0;
    std::vector<WaitList::Ticket> released;
  };
  CaughtUp CatchUp(uint32_t worker, uint64_t version, uint64_t finished, std::optional<uint64_t> order);

  // Whether the pull may be answered now.
  bool MayPull(const PullQuery& pull) const;

  // As MayPull; if not, `ticket` is among the released of the update that allows it, unless Forget comes first.
  bool MayPullOrRelease(const PullQuery& pull, WaitList::Ticket ticket);

  // The pull does not wait here any more; nothing if it was released.
  void Forget(const PullQuery& pull, WaitList::Ticket ticket);

  // Number of pulls that wait here.
  size_t waiting() const;

  // Ranks that the pull waits for; empty when it may be answered.
  std::vector<uint32_t> Missing(const PullQuery& pull) const;

  // The values as they are now, for `worker` if it is one that asks. Later updates leave them as they are.
  PulledValues Pull(std::optional<uint32_t> worker);

  // The state now, its values shared.
  SliceState Share() const;
  // INVALID_ARGUMENT for what was not shared by a slice like this.
  absl::Status Restore(SliceState state);

  const std::string& tensor() const { return tensor_; }
  const v1::SliceRange& range() const { return range_; }

 private:
  bool HasValuesLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool MayPullLocked(const PullQuery& pull) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void AwaitOrderLocked(std::optional<uint64_t> order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<WaitList::Ticket> TakeReleasedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string tensor_;
  const v1::SliceRange range_;
  const bool provided_;
  mutable absl::Mutex mutex_;
  const std::unique_ptr<SliceWeights> weights_ ABSL_PT_GUARDED_BY(mutex_);
  const std::unique_ptr<SlicePolicy> policy_ ABSL_PT_GUARDED_BY(mutex_);
  // Pulls by their step, in the order in which they came.
  std::set<std::pair<uint64_t, WaitList::Ticket>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> next_order_{0};
  // Changes that have been made.
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ballast
