// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/memory/staging_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(1);

}  // namespace

absl::StatusOr<StagingPool::Piece*> StagingPool::Take() {
  absl::StatusOr<Piece*> piece;
  {
    absl::MutexLock lock(&mutex_);
    piece = TakeLocked();
    if (!piece.ok()) return piece;
    if (*piece == nullptr) {
      const auto one_is_back = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !free_.empty(); };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&one_is_back), kTimeout)) {
        return absl::DeadlineExceededError(absl::StrCat("cuda device: timed out after ", absl::FormatDuration(kTimeout),
                                                        " waiting for one of ", most_pieces_,
                                                        " pieces of pinned memory"));
      }
      piece = free_.front();
      free_.pop_front();
    }
  }
  // Work issued on it may still run.
  absl::Status status = CudaStatus(cudaEventSynchronize((*piece)->used.get()), "cudaEventSynchronize");
  if (status.ok()) return piece;
  absl::MutexLock lock(&mutex_);
  free_.push_back(*piece);
  return status;
}

absl::StatusOr<StagingPool::Piece*> StagingPool::TakeFree() {
  absl::MutexLock lock(&mutex_);
  if (!free_.empty() && cudaEventQuery(free_.front()->used.get()) != cudaSuccess && pieces_.size() == most_pieces_) {
    return nullptr;
  }
  return TakeLocked();
}

absl::StatusOr<StagingPool::Piece*> StagingPool::TakeLocked() {
  // Makes another piece instead of waiting, if the limit allows it.
  const bool idle = !free_.empty() && cudaEventQuery(free_.front()->used.get()) == cudaSuccess;
  if (!idle && pieces_.size() < most_pieces_) return MakeLocked();
  if (free_.empty()) return nullptr;
  Piece* const piece = free_.front();
  free_.pop_front();
  return piece;
}

absl::StatusOr<StagingPool::Piece*> StagingPool::MakeLocked() {
  absl::StatusOr<PinnedMemory> memory = MakePinnedMemory(piece_floats_ * sizeof(float));
  if (!memory.ok()) return memory.status();
  absl::StatusOr<Event> used = MakeEvent();
  if (!used.ok()) return used.status();
  pieces_.push_back(std::make_unique<Piece>(Piece{*std::move(memory), *std::move(used)}));
  return pieces_.back().get();
}

absl::Status StagingPool::GiveBack(Piece* piece, cudaStream_t stream) {
  const absl::Status status = CudaStatus(cudaEventRecord(piece->used.get(), stream), "cudaEventRecord");
  absl::MutexLock lock(&mutex_);
  free_.push_back(piece);
  return status;
}

}  // namespace ballast
