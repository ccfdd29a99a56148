// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/device/cuda/memory/cuda_buffer.h"
#include "worker/device/cuda/memory/staging_pool.h"
#include "worker/device/cuda/stream/stream_order.h"

namespace ballast {

// Copies between the host's floats and a GPU's memory, piece by piece through pinned memory: while the GPU moves one
// piece the host moves the next. Where the GPU's elements have 16 bits the host rounds and widens, so that half the
// bytes go over the bus. Ranges lie inside their buffers. Thread safety: safe; one upload to a buffer at a time, or any
// number of downloads from it.
class HostCopies {
 public:
  // Both outlive this.
  HostCopies(StreamOrder* order, StagingPool* staging) : order_(*order), staging_(*staging) {}

  // After the operations on `to` issued before. On return the values were read; the GPU may still be copying.
  absl::Status Upload(absl::Span<const float> values, const CudaBuffer& to, int64_t offset);
  // After the operations and uploads on `from` issued before. On return the values are there.
  absl::Status Download(const CudaBuffer& from, int64_t offset, absl::Span<float> values);

 private:
  // How many fit into a piece.
  size_t PieceElements(ElementType type) const;

  StreamOrder& order_;
  StagingPool& staging_;
};

}  // namespace ballast
