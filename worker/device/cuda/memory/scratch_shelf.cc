// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/memory/scratch_shelf.h"

#include <utility>

#include "worker/device/cuda/memory/memory_pool.h"

namespace ballast {

// The pool is called outside the lock, because it may call the owners of spare memory.

ScratchShelf::ScratchShelf(MemoryPool* pool) : pool_(*pool) { pool_.UseShelf(this); }

ScratchShelf::~ScratchShelf() {
  SetUse(Use::kOff);
  Clear();
  pool_.UseShelf(nullptr);
}

void ScratchShelf::SetUse(Use use) {
  std::vector<void*> waiting;
  {
    absl::MutexLock lock(&mutex_);
    use_ = use;
    if (use != Use::kFixed) waiting.swap(waiting_);
  }
  // An error here occurs again in the next operation, whose status is checked.
  for (void* memory : waiting) pool_.GiveBack(memory).IgnoreError();
}

ScratchShelf::Use ScratchShelf::use() const {
  absl::MutexLock lock(&mutex_);
  return use_;
}

absl::StatusOr<void*> ScratchShelf::Take(size_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = free_.lower_bound(bytes);
    if (found != free_.end()) {
      void* const memory = found->second;
      taken_.emplace(memory, found->first);
      free_.erase(found);
      return memory;
    }
  }
  absl::StatusOr<void*> memory = pool_.TakeLasting(bytes);
  if (!memory.ok()) return memory;
  absl::MutexLock lock(&mutex_);
  taken_.emplace(*memory, bytes);
  return memory;
}

bool ScratchShelf::GiveBack(void* memory) {
  absl::MutexLock lock(&mutex_);
  const auto found = taken_.find(memory);
  if (found != taken_.end()) {
    free_.emplace(found->second, memory);
    taken_.erase(found);
    return true;
  }
  if (use_ != Use::kFixed) return false;
  waiting_.push_back(memory);
  return true;
}

void ScratchShelf::Clear() {
  std::multimap<size_t, void*> free;
  {
    absl::MutexLock lock(&mutex_);
    free.swap(free_);
  }
  for (const auto& [bytes, memory] : free) pool_.GiveBack(memory).IgnoreError();
}

}  // namespace ballast
