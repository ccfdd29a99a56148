// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/cuda/stream/handles.h"

namespace ballast {

// Owns pieces of pinned host memory, all of one size, through which copies between host and GPU go: the GPU reads and
// writes pinned memory by itself, beside its own work. Pieces are made when they are first needed and used again and
// again; there are at most as many as said. Thread safety: safe.
class StagingPool {
 public:
  // One piece. Whoever took it has it alone until it is given back.
  struct Piece {
    PinnedMemory memory;
    // What was last issued that reads or writes it.
    Event used;

    float* floats() const { return static_cast<float*>(memory.get()); }
  };

  StagingPool(int64_t piece_floats, size_t most_pieces) : piece_floats_(piece_floats), most_pieces_(most_pieces) {}

  int64_t piece_floats() const { return piece_floats_; }

  // What the pieces take, when all of them are made.
  int64_t most_bytes() const { return piece_floats_ * static_cast<int64_t>(most_pieces_ * sizeof(float)); }

  // A piece that no copy uses any more. Waits for a copy where as many as there may be are in use; DEADLINE_EXCEEDED
  // where none is given back for a minute.
  absl::StatusOr<Piece*> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, or null instead of a wait.
  absl::StatusOr<Piece*> TakeFree() ABSL_LOCKS_EXCLUDED(mutex_);
  // Records what was issued into `stream` as the piece's last use. The caller's copy may still run.
  absl::Status GiveBack(Piece* piece, cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Null: every piece is in use.
  absl::StatusOr<Piece*> TakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Piece*> MakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t piece_floats_;
  const size_t most_pieces_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Piece>> pieces_ ABSL_GUARDED_BY(mutex_);
  // The one given back first is first.
  std::deque<Piece*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
