// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/node_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/codecs/codec.h"

namespace ballast {

// Encodes a worker's gradients and owns the residuals, which are the encoding errors. Each residual is added to the
// slice's next gradient, so the sum of the sent gradients stays within one residual of the sum of the true gradients
// (Karimireddy et al., 2019, algorithm 2). A residual has one float per element, from a slice's first gradient on;
// there are none if the codec needs no feedback. Does not know the fate of a payload: a dropped one is lost, and a
// retry does not encode again. A worker that restarts begins without residuals.
// Thread safety: all methods may be called from any thread.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(std::unique_ptr<const Codec> codec) : codec_(std::move(codec)) {}

  const Codec& codec() const { return *codec_; }

  // Writes the payload to `out`, which has room for codec().EncodedBytes(gradient.size()) bytes; returns its length. A
  // gradient that is not finite is sent as the codec encodes it; elements of its residual that are not finite become 0.
  size_t Encode(uint32_t tensor_id, uint32_t slice_index, absl::Span<const float> gradient, uint64_t seed, char* out);

 private:
  using SliceKey = std::pair<uint32_t, uint32_t>;

  struct Residual {
    absl::Mutex mutex;
    std::vector<float> values ABSL_GUARDED_BY(mutex);
  };

  const std::unique_ptr<const Codec> codec_;
  absl::Mutex mutex_;
  // Residuals are never removed, so they may be used outside the lock.
  absl::node_hash_map<SliceKey, Residual> residuals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
