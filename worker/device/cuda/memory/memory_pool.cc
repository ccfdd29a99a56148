// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/memory/memory_pool.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
namespace {

std::string Mebibytes(size_t bytes) { return absl::StrFormat("%.1f MiB", bytes / 1048576.0); }

}  // namespace

absl::StatusOr<MemoryPool> MemoryPool::Create(int device, cudaStream_t stream) {
  cudaMemPool_t pool = nullptr;
  absl::Status status = CudaStatus(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  if (!status.ok()) return status;
  // By default each synchronization returns free memory to the system, and allocating it again is slow.
  uint64_t threshold = std::numeric_limits<uint64_t>::max();
  status =
      CudaStatus(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
  if (!status.ok()) return status;
  return MemoryPool(pool, stream);
}

void MemoryPool::OnShortage(const void* owner, std::function<void()> spare) {
  if (spare == nullptr) {
    spare_.erase(owner);
  } else {
    spare_[owner] = std::move(spare);
  }
}

absl::StatusOr<void*> MemoryPool::Take(size_t bytes) {
  return shelf_ != nullptr && shelf_->use() != ScratchShelf::Use::kOff ? shelf_->Take(bytes) : TakeLasting(bytes);
}

absl::StatusOr<void*> MemoryPool::TakeLasting(size_t bytes) {
  if (shelf_ != nullptr && shelf_->use() == ScratchShelf::Use::kFixed) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuda device: a segment needs ", bytes, " bytes more than when it was issued before"));
  }
  void* memory = nullptr;
  cudaError_t error = cudaMallocAsync(&memory, bytes, stream_);
  if (error == cudaErrorMemoryAllocation) {
    // Returned pieces may have the wrong sizes: the pool releases them, and we ask once more.
    cudaGetLastError();
    for (const auto& [owner, spare] : spare_) spare();
    cudaStreamSynchronize(stream_);
    cudaMemPoolTrimTo(pool_, 0);
    error = cudaMallocAsync(&memory, bytes, stream_);
  }
  if (error == cudaSuccess) return memory;
  if (error != cudaErrorMemoryAllocation) return CudaStatus(error, "cudaMallocAsync");
  cudaGetLastError();
  size_t free = 0, total = 0;
  if (absl::Status status = CudaStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"); !status.ok()) return status;
  return absl::ResourceExhaustedError(absl::StrCat("cuda device: no memory on the GPU: requested ", Mebibytes(bytes),
                                                   ", ", Mebibytes(free), " of ", Mebibytes(total),
                                                   " is free; other processes may hold the rest, see nvidia-smi"));
}

size_t MemoryPool::FreeBytes() const {
  size_t free = 0, total = 0;
  return CudaStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo").ok() ? free : 0;
}

size_t MemoryPool::PeakBytes() const {
  // After a reset, the high-water mark may be below what has been in use since before.
  uint64_t high = 0, now = 0;
  absl::Status status =
      CudaStatus(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &high), "cudaMemPoolGetAttribute");
  status.Update(
      CudaStatus(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &now), "cudaMemPoolGetAttribute"));
  return status.ok() ? std::max(high, now) : 0;
}

absl::Status MemoryPool::ResetPeak() {
  // CUDA accepts no value but 0.
  uint64_t high = 0;
  return CudaStatus(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &high), "cudaMemPoolSetAttribute");
}

absl::Status MemoryPool::GiveBack(void* memory) {
  if (shelf_ != nullptr && shelf_->GiveBack(memory)) return absl::OkStatus();
  return CudaStatus(cudaFreeAsync(memory, stream_), "cudaFreeAsync");
}

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
