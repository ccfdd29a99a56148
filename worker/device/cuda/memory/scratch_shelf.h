// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

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
