// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/cuda/kernels/cast.h"
#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/cuda/memory/memory_pool.h"

namespace ballast {

// Owns the 16-bit copies of floats that are multiplied in BF16 or FP16. A buffer's copy is made at its first use and
// stays valid until the buffer is written, so that weights are rounded once a step. Its memory is reused for the next
// copy, so that a graph may rely on its address, until memory is short. It does not observe buffers: writers call
// Written(). Thread safety: safe; a buffer must not be written during Get() of its copy.
class HalfCopies {
 public:
  // Valid for operations that are enqueued before it is destroyed.
  class Copy {
   public:
    explicit Copy(std::shared_ptr<const Scratch> memory)
        : data_(static_cast<const uint16_t*>(memory->bytes())), memory_(std::move(memory)) {}
    explicit Copy(const uint16_t* data) : data_(data) {}

    const uint16_t* data() const { return data_; }

   private:
    const uint16_t* data_;
    // Shared with HalfCopies, which may drop the copy when memory is short. Null if the memory is not owned.
    std::shared_ptr<const Scratch> memory_;
  };

  // Records how a segment's operations change the copies, so that a graph's launch can apply the same changes.
  class Trace;

  // `memory` outlives this, and calls Drop() when memory is short.
  explicit HalfCopies(MemoryPool* memory);
  ~HalfCopies();
  HalfCopies(const HalfCopies&) = delete;
  HalfCopies& operator=(const HalfCopies&) = delete;

  // Registers the buffer of any type that begins here; its copy is kept until Remove.
  void Add(const void* buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const void* buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // The buffer's contents were changed, or will be by operations in the stream.
  void Written(const void* buffer) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns `elements` rounded values: the first ones of a buffer, or memory outside all buffers, whose copy is not
  // kept. Values of type `type` are not copied.
  absl::StatusOr<Copy> Get(cudaStream_t stream, HalfType type, ConstElements values, int64_t elements)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes `halves`, of which the buffer holds the widened values, as the buffer's copy, so that it is not rounded
  // again. Does nothing if the buffer has had no copy as large: it may never be multiplied.
  absl::Status Adopt(cudaStream_t stream, HalfType type, const uint16_t* halves, const void* buffer, int64_t elements)
      ABSL_LOCKS_EXCLUDED(mutex_);

  void Drop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Unique number of the buffer registered at this address; 0 if none.
  uint64_t SerialOf(const void* buffer) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Records this thread's calls of Get and Written from Begin to End, which then undoes them.
  void BeginTrace() ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<const Trace> EndTrace() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether the traced calls would do the same now, with copies in the same places.
  bool Fits(const Trace& trace) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Applies a trace that fits, after its graph was launched.
  void Apply(const Trace& trace) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Describes the contents of a buffer's copy.
  struct State {
    HalfType type = HalfType::kBf16;
    // 0 if the copy is not valid.
    int64_t elements = 0;

    bool Has(HalfType wanted, int64_t least) const { return elements >= least && elements > 0 && type == wanted; }
  };
  struct Kept {
    uint64_t serial = 0;
    std::shared_ptr<const Scratch> memory;
    // Capacity of `memory`, in elements.
    int64_t room = 0;
    State state;
  };
  // Traced changes of one buffer's copy.
  struct TraceEntry {
    State before;
    // The part of an earlier copy that was used; elements is 0 if none.
    State needed;
    State after;
    bool made = false;
    // Address of the copy, if one was used or made.
    const void* memory = nullptr;
  };

  using KeptCopies = std::unordered_map<const void*, Kept>;

  // Records that the copy will be changed or used. Null if this thread records no trace.
  TraceEntry* NoteLocked(const KeptCopies::value_type& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  MemoryPool& memory_;
  mutable absl::Mutex mutex_;
  // Keyed by the address of the buffer.
  KeptCopies kept_ ABSL_GUARDED_BY(mutex_);
  uint64_t buffers_ ABSL_GUARDED_BY(mutex_) = 0;
  // Null while no trace is recorded.
  std::unique_ptr<Trace> trace_ ABSL_GUARDED_BY(mutex_);
};

class HalfCopies::Trace {
 private:
  friend class HalfCopies;

  const std::thread::id thread_ = std::this_thread::get_id();
  std::unordered_map<const void*, TraceEntry> entries_;
};

}  // namespace ballast
