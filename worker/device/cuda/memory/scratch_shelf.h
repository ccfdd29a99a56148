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

// Owns memory for the operations of segments. What one operation gave back the next one has, in the same segment or in
// another, for one runs after the other; none of it goes back to the pool before Clear(). So a segment that takes and
// gives back as it did before finds memory without asking CUDA, and a graph may keep the addresses. Thread safety:
// safe; one thread sets the use.
class ScratchShelf {
 public:
  enum class Use {
    // The pool answers.
    kOff,
    // The shelf does, and takes from the pool what it has not got.
    kGrowing,
    // Only the shelf does, and what is the pool's waits to go back: CUDA must not be asked.
    kFixed,
  };

  // The pool asks it from now on, until it goes. It outlives this.
  explicit ScratchShelf(MemoryPool* pool);
  // Its memory was given back.
  ~ScratchShelf();
  ScratchShelf(const ScratchShelf&) = delete;
  ScratchShelf& operator=(const ScratchShelf&) = delete;

  void SetUse(Use use) ABSL_LOCKS_EXCLUDED(mutex_);
  Use use() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The smallest free piece that is large enough. FAILED_PRECONDITION where there is none while the use is kFixed.
  absl::StatusOr<void*> Take(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the shelf took the memory: it is one of its pieces, or has to wait.
  bool GiveBack(void* memory) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the free pieces back. Graphs with their addresses must have gone.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  MemoryPool& pool_;
  mutable absl::Mutex mutex_;
  Use use_ ABSL_GUARDED_BY(mutex_) = Use::kOff;
  // Bytes of those that are in use.
  std::unordered_map<void*, size_t> taken_ ABSL_GUARDED_BY(mutex_);
  // By bytes.
  std::multimap<size_t, void*> free_ ABSL_GUARDED_BY(mutex_);
  // The pool's, for later.
  std::vector<void*> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
