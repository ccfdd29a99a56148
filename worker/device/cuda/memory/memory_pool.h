// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

class ScratchShelf;

// Takes memory of one GPU from CUDA's stream-ordered pool: to take and to give back are operations of a stream, and
// what one operation is done with the next may have without asking the driver. What is given back stays with the
// process. Thread safety: safe.
class MemoryPool {
 public:
  // `stream` orders all.
  static absl::StatusOr<MemoryPool> Create(int device, cudaStream_t stream);

  // What Take calls before it finds that there is not enough: gives back what `owner` can spare; null: nothing. Not
  // while another thread takes.
  void OnShortage(const void* owner, std::function<void()> spare);
  // Asked first by Take and GiveBack from now on; null: none. Not while another thread takes.
  void UseShelf(ScratchShelf* shelf) { shelf_ = shelf; }

  // Memory of any content, for at least one byte. RESOURCE_EXHAUSTED says what was asked and what is free. What the
  // shelf answers with is for one segment's operations.
  absl::StatusOr<void*> Take(size_t bytes);
  // The same for what outlives a segment. FAILED_PRECONDITION while the shelf is fixed.
  absl::StatusOr<void*> TakeLasting(size_t bytes);
  // What Take can still give, at least; 0 where the GPU does not answer.
  size_t FreeBytes() const;
  // After what the stream does before.
  absl::Status GiveBack(void* memory);

 private:
  MemoryPool(cudaMemPool_t pool, cudaStream_t stream) : pool_(pool), stream_(stream) {}

  cudaMemPool_t pool_;
  cudaStream_t stream_;
  ScratchShelf* shelf_ = nullptr;
  std::map<const void*, std::function<void()>> spare_;
};

}  // namespace ballast
