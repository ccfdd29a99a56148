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

// Encodes a worker's gradients, and owns what the codec lost of them: it is added to the slice's next gradient, so that
// the sum of what is sent stays within one residual of the sum of what was meant (Karimireddy et al., 2019, algorithm
// 2). One float for each element, from a slice's first gradient on; none where the codec wants no feedback. Knows
// nothing of what becomes of a payload: one that is dropped is lost, one that is sent again is not encoded again. A
// worker that restarts begins without residuals.
// Thread safety: all methods may be called from any thread.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(std::unique_ptr<const Codec> codec) : codec_(std::move(codec)) {}

  const Codec& codec() const { return *codec_; }

  // Writes the payload to `out`, which has codec().EncodedBytes(gradient.size()); answers its length. A gradient that
  // is not finite goes out as the codec encodes it; its residual, where that is not finite, begins again at 0.
  size_t Encode(uint32_t tensor_id, uint32_t slice_index, absl::Span<const float> gradient, uint64_t seed, char* out);

 private:
  using SliceKey = std::pair<uint32_t, uint32_t>;

  struct Residual {
    absl::Mutex mutex;
    std::vector<float> values ABSL_GUARDED_BY(mutex);
  };

  const std::unique_ptr<const Codec> codec_;
  absl::Mutex mutex_;
  // Nothing is ever removed, so a residual may be used outside the lock.
  absl::node_hash_map<SliceKey, Residual> residuals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
