// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "worker/device/cuda/memory/cuda_buffer.h"
#include "worker/device/cuda/memory/pinned_host.h"
#include "worker/device/cuda/stream/cuda_status.h"
#include "worker/device/cuda/stream/stream_order.h"

namespace ballast {

// Owns equal pieces of pinned host memory for copies between host and GPU. The GPU accesses pinned memory by itself,
// in parallel with its computation. Pieces are made on demand, up to a limit, and reused.
// Thread safety: safe.
class StagingPool {
 public:
  // One piece. Its taker has exclusive use until it returns it.
  struct Piece {
    PinnedMemory memory;
    // Recorded after the last copy that uses the piece.
    Event used;

    float* floats() const { return static_cast<float*>(memory.get()); }
  };

  StagingPool(int64_t piece_floats, size_t most_pieces) : piece_floats_(piece_floats), most_pieces_(most_pieces) {}

  int64_t piece_floats() const { return piece_floats_; }

  // Bytes of all pieces, if all are made.
  int64_t most_bytes() const { return piece_floats_ * static_cast<int64_t>(most_pieces_ * sizeof(float)); }

  // Returns a piece that no copy uses. If all allowed pieces are in use, waits for one; DEADLINE_EXCEEDED if none is
  // returned within a minute.
  absl::StatusOr<Piece*> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  // Like Take, but returns null instead of waiting.
  absl::StatusOr<Piece*> TakeFree() ABSL_LOCKS_EXCLUDED(mutex_);
  // Records the work issued into `stream` as the piece's last use. The caller's copy may still run.
  absl::Status GiveBack(Piece* piece, cudaStream_t stream) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Returns null if every piece is in use.
  absl::StatusOr<Piece*> TakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Piece*> MakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t piece_floats_;
  const size_t most_pieces_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Piece>> pieces_ ABSL_GUARDED_BY(mutex_);
  // The piece returned first is first.
  std::deque<Piece*> free_ ABSL_GUARDED_BY(mutex_);
};

// Copies between host floats and GPU memory. If the host's memory is pinned and both sides are floats, the GPU moves
// them by itself; otherwise they go piece by piece through pinned memory: while the GPU moves one piece, the host moves
// the next. If the GPU's elements have 16 bits, the host rounds and widens them, so that half the bytes cross the bus.
// Ranges lie inside their buffers. Thread safety: safe; one upload to a buffer at a time, or any number of downloads
// from it.
class HostCopies {
 public:
  // All outlive this.
  HostCopies(StreamOrder* order, StagingPool* staging, const PinnedHost* pinned)
      : order_(*order), staging_(*staging), pinned_(*pinned) {}

  // Runs after the operations issued on `to` so far. On return `values` was read; the GPU may still be copying.
  absl::Status Upload(absl::Span<const float> values, const CudaBuffer& to, int64_t offset);
  // Runs after the operations and uploads issued on `from` so far, and waits for the values.
  absl::Status Download(const CudaBuffer& from, int64_t offset, absl::Span<float> values);
  // Downloads all; those that fit into one piece together take one wait.
  absl::Status DownloadAll(absl::Span<const HostCopy> copies);

 private:
  // Copies pinned floats, and waits for the copy.
  absl::Status UploadPinned(absl::Span<const float> values, const CudaBuffer& to, int64_t offset);
  absl::Status DownloadPinned(const CudaBuffer& from, int64_t offset, absl::Span<float> values);
  // Number of elements that fit into a piece.
  size_t PieceElements(ElementType type) const;

  StreamOrder& order_;
  StagingPool& staging_;
  const PinnedHost& pinned_;
};

}  // namespace ballast
