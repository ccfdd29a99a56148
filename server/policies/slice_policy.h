// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/v1/tensor.pb.h"
#include "server/policies/policy_state.h"
#include "server/weights/optimizers/gradient.h"
#include "server/weights/slice_weights.h"

namespace ballast {

// What one worker hands in for one slice. `examples` is the gradient's weight; at 0 the gradient may be empty.
struct Contribution {
  uint32_t worker = 0;
  uint64_t step = 0;
  uint32_t examples = 0;
  // Of the values that the gradient was computed from.
  uint64_t from_version = 0;
  Gradient gradient;
  // PushHeader.schedule_position; a policy that takes the contribution tells the weights before it updates them.
  std::optional<double> position;
};

// Who wants to pull, and at which step. Not every puller is a worker.
struct PullQuery {
  uint64_t step = 0;
  std::optional<uint32_t> worker;
};

enum class PushDisposition {
  // The weights have been updated, by this contribution or with it as the last of its step.
  kApplied,
  // It waits for the others of its step.
  kBuffered,
  // Its step is over; it was not used.
  kDropped,
};

// Who waits for whom at one slice. Holds the contributions that wait; the weights are handed in.
// Thread safety: none; its slice guards it.
class SlicePolicy {
 public:
  virtual ~SlicePolicy() = default;

  // FAILED_PRECONDITION when a worker cannot be at `step`, whatever the others do. Once OK, later calls stay so.
  virtual absl::Status CheckStep(uint64_t step, const SliceWeights& weights) const = 0;

  // Takes a contribution for which CheckStep was OK. The worker takes part from now on, had it paused.
  virtual PushDisposition Offer(const Contribution& contribution, SliceWeights& weights) = 0;

  // Nobody waits for the worker until it contributes again. Whether that let an update be applied.
  virtual bool Pause(uint32_t worker, SliceWeights& weights) = 0;

  // The worker has seen `version` and has finished `finished` steps here, of which the slice knows less: it came back
  // from a log whose end was lost. Counts the lost updates as made, so that nobody waits for a gradient that was handed
  // in before and is lost. Changes nothing where the slice knows as much.
  virtual void CatchUp(uint32_t worker, uint64_t version, uint64_t finished, SliceWeights& weights) = 0;

  // Whether a pull may be answered. This depends on its step alone, and a step that may be pulled allows every earlier
  // one: so a slice looks at no more of its waiting pulls than may go on.
  virtual bool MayPull(const PullQuery& pull, const SliceWeights& weights) const = 0;

  // The worker was handed the weights as they are.
  virtual void OnPull(uint32_t worker, const SliceWeights& weights) = 0;

  // The ranks whose contributions that pull waits for.
  virtual std::vector<uint32_t> Missing(const PullQuery& pull) const = 0;

  // All that it remembers, but for what it handed out: a worker's next pull makes that good. Gradients are shared, not
  // copied.
  virtual PolicyState Save() const = 0;

  // As saved by a policy of the same kind, of as many workers; `weights` have been restored. INVALID_ARGUMENT for
  // anything else.
  virtual absl::Status Restore(PolicyState state, const SliceWeights& weights) = 0;
};

// Every slice of a job gets its own. INVALID_ARGUMENT where no kind is set.
absl::StatusOr<std::unique_ptr<SlicePolicy>> MakeSlicePolicy(const v1::ConsistencyPolicy& config, uint32_t workers);

}  // namespace ballast
