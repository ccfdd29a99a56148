// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/cuda/kernels/cast.h"
#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda/memory/scratch.h"

namespace ballast {

// The copies in 16 bits of floats that are multiplied in BF16 or FP16. A buffer's copy is made when it is first needed
// and holds until the buffer is written, so that weights are rounded once a step. Its memory is kept for the next one,
// so that a graph may know its address, until memory is short. It does not watch the buffers: who writes one says so.
// Thread safety: safe; a buffer is not written while its copy is asked for.
class HalfCopies {
 public:
  // For the operations that are put into the stream before it goes.
  class Copy {
   public:
    explicit Copy(std::shared_ptr<const Scratch> memory)
        : data_(static_cast<const uint16_t*>(memory->bytes())), memory_(std::move(memory)) {}
    explicit Copy(const uint16_t* data) : data_(data) {}

    const uint16_t* data() const { return data_; }

   private:
    const uint16_t* data_;
    // Shared with HalfCopies, which may drop the copy meanwhile, when memory is short. Null where it is not its own.
    std::shared_ptr<const Scratch> memory_;
  };

  // What a segment's operations do to the copies, so that it can be said of them when a graph does the same again.
  class Trace;

  // `memory` outlives this, and asks it for what it can give up.
  explicit HalfCopies(MemoryPool* memory);
  ~HalfCopies();
  HalfCopies(const HalfCopies&) = delete;
  HalfCopies& operator=(const HalfCopies&) = delete;

  // A buffer of any type begins here; from Add to Remove its copy is kept.
  void Add(const void* buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const void* buffer) ABSL_LOCKS_EXCLUDED(mutex_);
  // What the buffer holds was changed, or will be by what the stream has.
  void Written(const void* buffer) ABSL_LOCKS_EXCLUDED(mutex_);

  // `elements` values, rounded. They are a buffer's first ones, or memory that is no buffer's, of which nothing is
  // kept. What is of this type is not copied.
  absl::StatusOr<Copy> Get(cudaStream_t stream, HalfType type, ConstElements values, int64_t elements)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives up all copies.
  void Drop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Which buffer is here: another number for another one in the same place. 0: none.
  uint64_t SerialOf(const void* buffer) const ABSL_LOCKS_EXCLUDED(mutex_);
  // From Begin to End Get and Written, by this thread, are noted and, in the end, undone.
  void BeginTrace() ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<const Trace> EndTrace() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the same would be done now, with copies in the same places.
  bool Fits(const Trace& trace) const ABSL_LOCKS_EXCLUDED(mutex_);
  // It was done, by a trace that fits.
  void Apply(const Trace& trace) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What a buffer's copy is of.
  struct State {
    HalfType type = HalfType::kBf16;
    // 0: the copy does not hold.
    int64_t elements = 0;

    bool Has(HalfType wanted, int64_t least) const { return elements >= least && elements > 0 && type == wanted; }
  };
  struct Kept {
    uint64_t serial = 0;
    // Null: none.
    std::shared_ptr<const Scratch> memory;
    // That there is room for.
    int64_t room = 0;
    State state;
  };
  // Of a buffer.
  struct TraceEntry {
    State before;
    // What was taken of a copy that had been made before; elements 0: nothing.
    State needed;
    State after;
    bool made = false;
    // Of the copy, where one was taken or made.
    const void* memory = nullptr;
  };

  using KeptCopies = std::unordered_map<const void*, Kept>;

  // Notes that this is about to change or to be used. Null where no trace of this thread is made.
  TraceEntry* NoteLocked(const KeptCopies::value_type& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  MemoryPool& memory_;
  mutable absl::Mutex mutex_;
  // By where their buffers begin.
  KeptCopies kept_ ABSL_GUARDED_BY(mutex_);
  uint64_t buffers_ ABSL_GUARDED_BY(mutex_) = 0;
  // Null where none is made.
  std::unique_ptr<Trace> trace_ ABSL_GUARDED_BY(mutex_);
};

class HalfCopies::Trace {
 private:
  friend class HalfCopies;

  const std::thread::id thread_ = std::this_thread::get_id();
  std::unordered_map<const void*, TraceEntry> entries_;
};

}  // namespace ballast
