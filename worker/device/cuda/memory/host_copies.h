// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/device/cuda/memory/cuda_buffer.h"
#include "worker/device/cuda/memory/staging_pool.h"
#include "worker/device/cuda/stream/stream_order.h"

namespace ballast {

// Copies between host floats and GPU memory, piece by piece through pinned memory: while the GPU moves one piece, the
// host moves the next. If the GPU's elements have 16 bits, the host rounds and widens them, so that half the bytes
// cross the bus. Ranges lie inside their buffers. Thread safety: safe; one upload to a buffer at a time, or any
// number of downloads from it.
class HostCopies {
 public:
  // Both outlive this.
  HostCopies(StreamOrder* order, StagingPool* staging) : order_(*order), staging_(*staging) {}

  // Runs after the operations issued on `to` so far. On return `values` was read; the GPU may still be copying.
  absl::Status Upload(absl::Span<const float> values, const CudaBuffer& to, int64_t offset);
  // Runs after the operations and uploads issued on `from` so far, and waits for the values.
  absl::Status Download(const CudaBuffer& from, int64_t offset, absl::Span<float> values);

 private:
  // Number of elements that fit into a piece.
  size_t PieceElements(ElementType type) const;

  StreamOrder& order_;
  StagingPool& staging_;
};

}  // namespace ballast
