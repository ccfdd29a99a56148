// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "server/policies/slice_policy.h"
#include "server/slice_weights.h"
#include "server/wait_room.h"

namespace ballast {

// A slice that many workers push to and pull from: weights, the policy that guards them, and the pulls that wait.
// Knows nothing of its siblings. Thread safety: all methods may be called from any thread.
class Slice {
 public:
  Slice(std::string tensor, const v1::SliceRange& range, std::unique_ptr<SliceWeights> weights,
        std::unique_ptr<SlicePolicy> policy)
      : tensor_(std::move(tensor)), range_(range), weights_(std::move(weights)), policy_(std::move(policy)) {}

  struct Applied {
    Verdict verdict = Verdict::kKept;
    // Version at apply minus the version that the gradient was computed from; 0 unless applied.
    uint64_t staleness = 0;
    float learning_rate = 0;
    // Waits that the update lets go on: the caller reports them to the wait room, outside all locks.
    std::vector<WaitRoom::Ticket> released;
  };

  // As SlicePolicy::CheckStep.
  absl::Status CheckStep(uint64_t step) const;

  // `from_version` is the version that the gradient was computed from.
  Applied Offer(const Contribution& contribution, uint64_t from_version);

  // Whether a pull at `step` may be answered now.
  bool MayPull(uint64_t step) const;

  // As MayPull; if not, `ticket` is among the released of the update that allows it.
  bool MayPullOrRelease(uint64_t step, WaitRoom::Ticket ticket);

  // Ranks that a pull at `step` waits for; empty when it may be answered.
  std::vector<uint32_t> Missing(uint64_t step) const;

  // Hands out the values under the slice's lock; `read` must not call back.
  void Read(absl::FunctionRef<void(uint64_t version, absl::Span<const float> values)> read) const;

  const std::string& tensor() const { return tensor_; }
  const v1::SliceRange& range() const { return range_; }

 private:
  struct Waiting {
    uint64_t step = 0;
    WaitRoom::Ticket ticket = 0;
  };

  const std::string tensor_;
  const v1::SliceRange range_;
  mutable absl::Mutex mutex_;
  const std::unique_ptr<SliceWeights> weights_ ABSL_PT_GUARDED_BY(mutex_);
  const std::unique_ptr<SlicePolicy> policy_ ABSL_PT_GUARDED_BY(mutex_);
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
