// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

class ScratchShelf;

// Takes memory of one GPU from CUDA's stream-ordered pool. Taking and returning are operations of a stream, so an
// operation can reuse memory of an earlier one without a call to the driver. Returned memory stays with the process.
// Thread safety: safe.
class MemoryPool {
 public:
  // `stream` orders all uses.
  static absl::StatusOr<MemoryPool> Create(int device, cudaStream_t stream);

  // Registers a function that returns what `owner` can spare, which Take calls before it fails; null removes it. Do
  // not call it while another thread takes memory.
  void OnShortage(const void* owner, std::function<void()> spare);
  // Makes Take and GiveBack ask `shelf` first; null: no shelf. Do not call it while another thread takes memory.
  void UseShelf(ScratchShelf* shelf) { shelf_ = shelf; }

  // Uninitialized memory of at least one byte. RESOURCE_EXHAUSTED names the requested and the free memory. Memory
  // from the shelf is only for the operations of one segment.
  absl::StatusOr<void*> Take(size_t bytes);
  // Like Take, for memory that outlives a segment. FAILED_PRECONDITION while the shelf is fixed.
  absl::StatusOr<void*> TakeLasting(size_t bytes);
  // Lower bound of what Take can still return; 0 if the GPU does not respond.
  size_t FreeBytes() const;
  // The most bytes in use at once in this process since ResetPeak; 0 if the GPU does not respond. Bytes that are
  // returned but not yet in use again do not count, although the process keeps them.
  size_t PeakBytes() const;
  absl::Status ResetPeak();
  // Returns memory after the work issued in the stream so far.
  absl::Status GiveBack(void* memory);

 private:
  MemoryPool(cudaMemPool_t pool, cudaStream_t stream) : pool_(pool), stream_(stream) {}

  cudaMemPool_t pool_;
  cudaStream_t stream_;
  ScratchShelf* shelf_ = nullptr;
  std::map<const void*, std::function<void()>> spare_;
};

// Owns memory for one operation; the destructor returns it, in stream order.
class Scratch {
 public:
  static absl::StatusOr<Scratch> Make(MemoryPool* memory, int64_t bytes) {
    return Make(memory, memory->Take(bytes > 0 ? bytes : 1));
  }
  // Like Make, for memory that outlives a segment.
  static absl::StatusOr<Scratch> MakeLasting(MemoryPool* memory, int64_t bytes) {
    return Make(memory, memory->TakeLasting(bytes > 0 ? bytes : 1));
  }

  ~Scratch() {
    // An error here occurs again in the next operation, whose status is checked.
    if (taken_ != nullptr) memory_->GiveBack(taken_).IgnoreError();
  }
  Scratch(Scratch&& other) noexcept : memory_(other.memory_), taken_(std::exchange(other.taken_, nullptr)) {}
  Scratch& operator=(Scratch&&) = delete;

  float* floats() const { return static_cast<float*>(taken_); }
  void* bytes() const { return taken_; }

 private:
  static absl::StatusOr<Scratch> Make(MemoryPool* memory, absl::StatusOr<void*> taken) {
    if (!taken.ok()) return taken.status();
    return Scratch(memory, *taken);
  }

  Scratch(MemoryPool* memory, void* taken) : memory_(memory), taken_(taken) {}

  MemoryPool* memory_;
  void* taken_;
};

class MemoryPool;

// Owns memory for the operations of segments. Memory that one operation returns goes to the next one, of the same
// segment or another, because they run one after the other; none of it goes back to the pool before Clear(). So a
// repeated segment finds its memory without calling CUDA, and a graph may keep the addresses. Thread safety: safe;
// one thread sets the use.
class ScratchShelf {
 public:
  enum class Use {
    // All requests go to the pool.
    kOff,
    // The shelf serves requests, and takes memory that it lacks from the pool.
    kGrowing,
    // Only the shelf serves requests, and memory of the pool is returned later, because CUDA must not be called.
    kFixed,
  };

  // Registers itself with the pool until destruction. The pool outlives it.
  explicit ScratchShelf(MemoryPool* pool);
  // All its memory must have been given back.
  ~ScratchShelf();
  ScratchShelf(const ScratchShelf&) = delete;
  ScratchShelf& operator=(const ScratchShelf&) = delete;

  void SetUse(Use use) ABSL_LOCKS_EXCLUDED(mutex_);
  Use use() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The smallest free piece that is large enough. FAILED_PRECONDITION if there is none while the use is kFixed.
  absl::StatusOr<void*> Take(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether the shelf accepted the memory: one of its pieces, or one that it returns to the pool later.
  bool GiveBack(void* memory) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the free pieces to the pool. Destroy graphs with their addresses first.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  MemoryPool& pool_;
  mutable absl::Mutex mutex_;
  Use use_ ABSL_GUARDED_BY(mutex_) = Use::kOff;
  // Sizes in bytes of the pieces in use.
  std::unordered_map<void*, size_t> taken_ ABSL_GUARDED_BY(mutex_);
  // Keyed by size in bytes.
  std::multimap<size_t, void*> free_ ABSL_GUARDED_BY(mutex_);
  // Memory to return to the pool later.
  std::vector<void*> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
