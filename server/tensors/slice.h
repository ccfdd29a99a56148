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
#include "absl/time/time.h"
#include "common/concurrency/wait_list.h"
#include "server/policies/slice_policy.h"
#include "server/weights/slice_weights.h"

namespace ballast {

// The values that a pull reads from a slice. Later updates do not change them.
struct PulledValues {
  uint64_t version = 0;
  ValueBuffer values;
};

// A slice's state at one moment. It shares memory with the slice.
struct SliceState {
  SliceWeights::State weights;
  PolicyState policy;
};

// Owns one slice: its weights, the policy that guards them, and its waiting pulls. Deliberately does not know the
// other slices. Thread safety: all methods may be called from any thread.
class Slice {
 public:
  // `provided`: the values come from SetValues; no pull or push is allowed before.
  Slice(std::string tensor, const v1::SliceRange& range, std::unique_ptr<SliceWeights> weights,
        std::unique_ptr<SlicePolicy> policy, bool provided = false)
      : tensor_(std::move(tensor)),
        range_(range),
        provided_(provided),
        weights_(std::move(weights)),
        policy_(std::move(policy)) {}

  struct Applied {
    PushDisposition disposition = PushDisposition::kBuffered;
    // Version at apply minus the version that the gradient was computed from; 0 if not applied.
    uint64_t staleness = 0;
    float learning_rate = 0;
    // Time that the gradient waited for other changes to the slice.
    absl::Duration waited;
    // Waits that the update released. The caller counts them down in the wait list, outside all locks.
    std::vector<WaitList::Ticket> released;
  };

  // Like SlicePolicy::CheckStep; also FAILED_PRECONDITION while the values have not been provided.
  absl::Status CheckStep(uint64_t step) const;

  // True if values with that checksum may be set, false if they already were. FAILED_PRECONDITION if other values
  // were set or a push was accepted.
  absl::StatusOr<bool> CheckValues(uint64_t checksum) const;

  // Sets the first values, one for each element, and returns the waits that this releases. CheckValues must have
  // returned true, with no change to the slice since.
  std::vector<WaitList::Ticket> SetValues(ValueBuffer values, uint64_t checksum);

  // False while the values have not been provided.
  bool HasValues() const;

  // Reserves the next place in the order of changes. The change with that place must follow soon, because all later
  // ones wait for it. Places at several slices must be reserved in the same order at each.
  uint64_t ReserveOrder() { return next_order_.fetch_add(1); }

  // Like SlicePolicy::Offer. `order`: its reserved place, if changes are ordered.
  Applied Offer(const PushTicket& push, uint64_t from_version, const Gradient& gradient, std::optional<uint64_t> order);

  // Like SlicePolicy::Pause; returns the released waits.
  std::vector<WaitList::Ticket> Pause(uint32_t worker, std::optional<uint64_t> order);

  // Like SlicePolicy::CatchUp.
  struct CaughtUp {
    // Number of updates that the slice was behind.
    uint64_t lost_updates = 0;
    std::vector<WaitList::Ticket> released;
  };
  CaughtUp CatchUp(uint32_t worker, uint64_t version, uint64_t finished, std::optional<uint64_t> order);

  bool MayPull(const PullQuery& pull) const;

  // Like MayPull. If false, the update that allows the pull releases `ticket`, unless Forget is called first.
  bool MayPullOrRelease(const PullQuery& pull, WaitList::Ticket ticket);

  // Removes a waiting pull. Does nothing if it was released.
  void Forget(const PullQuery& pull, WaitList::Ticket ticket);

  // Number of waiting pulls.
  size_t waiting() const;

  // Ranks that the pull waits for; empty if it need not wait.
  std::vector<uint32_t> Missing(const PullQuery& pull) const;

  // Returns the current values, which updates do not change, and records that `worker`, if set, received them.
  PulledValues Pull(std::optional<uint32_t> worker);

  // Memory in bytes of the gradients and values that the policy keeps. Does not wait for a change under way.
  uint64_t policy_bytes() const { return policy_bytes_.load(std::memory_order_relaxed); }

  // Returns the current state, which shares memory with the slice.
  SliceState Share() const;
  // INVALID_ARGUMENT if the state does not fit this slice.
  absl::Status Restore(SliceState state);

  // The slice's name in errors.
  std::string Describe() const;
  const std::string& tensor() const { return tensor_; }
  const v1::SliceRange& range() const { return range_; }

 private:
  bool HasValuesLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool MayPullLocked(const PullQuery& pull) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns how long that took; reads the clock only if the change has to wait.
  absl::Duration AwaitOrderLocked(std::optional<uint64_t> order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Call it after each change of the policy.
  void CountPolicyLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    policy_bytes_.store(policy_->Bytes(), std::memory_order_relaxed);
  }
  std::vector<WaitList::Ticket> TakeReleasedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string tensor_;
  const v1::SliceRange range_;
  const bool provided_;
  mutable absl::Mutex mutex_;
  const std::unique_ptr<SliceWeights> weights_ ABSL_PT_GUARDED_BY(mutex_);
  const std::unique_ptr<SlicePolicy> policy_ ABSL_PT_GUARDED_BY(mutex_);
  // Waiting pulls by step, then in order of arrival.
  std::set<std::pair<uint64_t, WaitList::Ticket>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> next_order_{0};
  std::atomic<uint64_t> policy_bytes_{0};
  // Number of changes made.
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ballast
