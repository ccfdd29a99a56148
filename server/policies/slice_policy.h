// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/tensor.pb.h"
#include "server/slice_weights.h"

namespace ballast {

// What one worker hands in for one slice. `examples` is the gradient's weight; at 0 the gradient may be empty.
struct Contribution {
  uint32_t worker = 0;
  uint64_t step = 0;
  uint32_t examples = 0;
  absl::Span<const float> gradient;
};

enum class Verdict {
  // The weights have been updated, by this contribution or with it as the last of its step.
  kApplied,
  // It waits for the others of its step.
  kKept,
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

  // Takes a contribution for which CheckStep was OK.
  virtual Verdict Offer(const Contribution& contribution, SliceWeights& weights) = 0;

  // Whether a pull at `step` may be answered.
  virtual bool MayPull(uint64_t step, const SliceWeights& weights) const = 0;

  // The ranks whose contributions the next update waits for.
  virtual std::vector<uint32_t> Missing() const = 0;
};

// Every slice of a job gets its own. INVALID_ARGUMENT where no kind is set.
absl::StatusOr<std::unique_ptr<SlicePolicy>> MakeSlicePolicy(const v1::ConsistencyPolicy& config, uint32_t workers);

}  // namespace ballast
