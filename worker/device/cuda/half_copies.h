// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/cuda/kernels/cast.h"
#include "worker/device/cuda/memory_pool.h"
#include "worker/device/cuda/scratch.h"

namespace ballast {

// The copies in 16 bits of what is multiplied in BF16 or FP16. A buffer's copy is made when it is first needed and kept
// until the buffer is written, so that weights are rounded once a step, and activations once for forward and backward.
// When memory is short the copies go first. It does not watch the buffers: who writes one says so. Thread safety: safe;
// a buffer is not written while its copy is asked for.
class HalfCopies {
 public:
  // For the operations that are put into the stream before it goes.
  class Copy {
   public:
    explicit Copy(std::shared_ptr<const Scratch> memory) : memory_(std::move(memory)) {}

    const uint16_t* data() const { return static_cast<const uint16_t*>(memory_->bytes()); }

   private:
    // Shared with HalfCopies, which may drop the copy meanwhile, when memory is short.
    std::shared_ptr<const Scratch> memory_;
  };

  // `memory` outlives this, and asks it for what it can give up.
  explicit HalfCopies(MemoryPool* memory);
  ~HalfCopies();
  HalfCopies(const HalfCopies&) = delete;
  HalfCopies& operator=(const HalfCopies&) = delete;

  // A buffer begins here; from Add to Remove its copy is kept.
  void Add(const float* buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const float* buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // What the buffer holds was changed, or will be by what the stream has.
  void Written(const float* buffer) ABSL_LOCKS_EXCLUDED(mutex_);

  // `elements` values, rounded. They are a buffer's first ones, or memory that is no buffer's, of which nothing is
  // kept.
  absl::StatusOr<Copy> Get(cudaStream_t stream, HalfType type, const float* values, int64_t elements)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives up all copies.
  void Drop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Kept {
    // Null: none.
    std::shared_ptr<const Scratch> memory;
    HalfType type = HalfType::kBf16;
    int64_t elements = 0;
  };

  MemoryPool& memory_;
  absl::Mutex mutex_;
  // By where their buffers begin.
  std::unordered_map<const float*, Kept> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
