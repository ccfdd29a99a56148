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
  // Returns memory after the work issued in the stream so far.
  absl::Status GiveBack(void* memory);

 private:
  MemoryPool(cudaMemPool_t pool, cudaStream_t stream) : pool_(pool), stream_(stream) {}

  cudaMemPool_t pool_;
  cudaStream_t stream_;
  ScratchShelf* shelf_ = nullptr;
  std::map<const void*, std::function<void()>> spare_;
};

}  // namespace ballast
