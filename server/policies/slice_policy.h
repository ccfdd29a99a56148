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

// A worker's push, except for its gradients; see ballast.v1.PushHeader. `examples` is the weight of the gradients; at 0
// they may be empty.
struct PushTicket {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;
  uint64_t step = 0;
  uint32_t examples = 0;
  // A policy that accepts a gradient passes it to the weights before the update.
  std::optional<double> schedule_position;
  // When a push of rows came; 0: not known.
  uint64_t unix_seconds = 0;
};

// A pull's step and worker; readers have no worker.
struct PullQuery {
  uint64_t step = 0;
  std::optional<uint32_t> worker;
};

enum class PushDisposition {
  // The weights were updated, by this gradient alone or as the last of its step.
  kApplied,
  // Waits for other gradients of its step.
  kBuffered,
  // Not used, because its step is over.
  kDropped,
};

// Decides which pulls wait for which workers at one slice, and owns the gradients that wait; the caller passes
// the weights. Thread safety: none; guarded by its slice.
class SlicePolicy {
 public:
  virtual ~SlicePolicy() = default;

  // FAILED_PRECONDITION if no worker can be at `step`, whatever the others do. Once OK, it stays OK.
  virtual absl::Status CheckStep(uint64_t step, const SliceWeights& weights) const = 0;

  // Takes the slice's gradient of a push for which CheckStep returned OK; it was computed from the values of
  // `from_version`. Ends the worker's pause, if any.
  virtual PushDisposition Offer(const PushTicket& push, uint64_t from_version, const Gradient& gradient,
                                SliceWeights& weights) = 0;

  // No pull or step waits for the worker until it contributes again. Returns true if that applied an update.
  virtual bool Pause(uint32_t worker, SliceWeights& weights) = 0;

  // Handles a worker that has seen `version` and finished `finished` steps, of which the slice knows fewer because it
  // was restored from a log whose end was lost. Counts the lost updates as applied, so that no pull waits for a
  // gradient that was pushed and lost. Changes nothing if the slice is not behind.
  virtual void CatchUp(uint32_t worker, uint64_t version, uint64_t finished, SliceWeights& weights) = 0;

  // True if a pull may proceed. The result depends on its step alone, and a step that may be pulled allows every
  // earlier one, so a slice checks only the waiting pulls that it releases.
  virtual bool MayPull(const PullQuery& pull, const SliceWeights& weights) const = 0;

  // Records that the worker received the current weights.
  virtual void OnPull(uint32_t worker, const SliceWeights& weights) = 0;

  // Ranks whose contributions the pull waits for.
  virtual std::vector<uint32_t> Missing(const PullQuery& pull) const = 0;

  // Memory in bytes of the gradients and values that the policy keeps. Takes constant time.
  virtual uint64_t Bytes() const = 0;

  // Returns the policy's state, except the values that workers received, which their next pulls restore. Gradients
  // are shared, not copied.
  virtual PolicyState Save() const = 0;

  // Restores the state that a policy of the same kind and number of workers saved; `weights` must be restored first.
  // INVALID_ARGUMENT for any other state.
  virtual absl::Status Restore(PolicyState state, const SliceWeights& weights) = 0;
};

// Every slice of a job has its own policy. INVALID_ARGUMENT if no kind is set.
absl::StatusOr<std::unique_ptr<SlicePolicy>> MakeSlicePolicy(const v1::ConsistencyPolicy& config, uint32_t workers);

// Number of updates applied since the values of that version.
inline uint64_t StalenessOf(uint64_t from_version, const SliceWeights& weights) {
  return weights.version() > from_version ? weights.version() - from_version : 0;
}

// Factor of the learning rate for that staleness (Zhang et al., 2016, staleness-aware async-SGD, with 1 + staleness,
// so that a fresh gradient is not scaled).
inline float RateScale(uint64_t staleness) { return 1.0f / (1.0f + static_cast<float>(staleness)); }

}  // namespace ballast
