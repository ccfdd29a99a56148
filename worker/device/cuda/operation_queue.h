// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "worker/device/cuda/gpu_choice.h"
#include "worker/device/cuda/memory/cuda_buffer.h"
#include "worker/device/cuda/memory/half_copies.h"
#include "worker/device/cuda/memory/host_copies.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda/memory/peer_access.h"
#include "worker/device/cuda/memory/pinned_host.h"
#include "worker/device/cuda/operands.h"
#include "worker/device/cuda/segment_graphs.h"
#include "worker/device/cuda/stream/cuda_status.h"
#include "worker/device/cuda/stream/stream_order.h"
#include "worker/device/device_types.h"

namespace ballast {

// Owns one GPU's streams and memory, and issues operations into them, each after the uploads to its operands. The
// first error stays, and nothing is issued after it. It does not know what an operation computes.
// Thread safety: that of Device.
class OperationQueue {
 public:
  using Buffers = std::initializer_list<const Buffer*>;

  // With `graphs`, repeated segments become CUDA graphs.
  static absl::StatusOr<std::unique_ptr<OperationQueue>> Create(const Gpu& gpu, bool graphs);
  // Streams and pinned memory must not be destroyed while they are in use.
  ~OperationQueue() { Drain(); }

  const Gpu& gpu() const { return gpu_; }
  StreamOrder& order() const { return *order_; }
  MemoryPool& memory() const { return *memory_; }
  HalfCopies& halves() const { return *halves_; }
  StagingPool& staging() const { return *staging_; }
  HostCopies& copies() { return copies_; }
  PeerAccess& peers() { return peers_; }
  PinnedHost& pinned() { return *pinned_; }
  SegmentGraphs& graphs() { return graphs_; }

  // Issues an operation that reads and writes these buffers; some may be null. `launch` takes the stream and returns
  // a status.
  template <typename Launch>
  void Run(Buffers read, Buffers written, Launch launch) {
    Operands operands;
    for (const Buffers& buffers : {read, written}) {
      for (const Buffer* buffer : buffers) {
        if (buffer != nullptr) operands.push_back(&gpu::Own(*buffer));
      }
    }
    absl::Status status = Begin(operands);
    if (status.ok()) status = launch(order_->compute());
    for (const Buffer* buffer : written) {
      if (buffer != nullptr) gpu::Own(*buffer).Written();
    }
    End(operands, status);
  }

  // Like Run, for a kernel or a single CUDA call.
  template <typename Launch>
  void RunKernel(const char* name, Buffers read, Buffers written, Launch launch) {
    Run(read, written, [&](cudaStream_t stream) { return CudaStatus(launch(stream), name); });
  }

  // Like Device::Repeat.
  void Repeat(const Segment& segment, absl::FunctionRef<void()> issue);

  // Scratch memory for an operation that is being issued.
  absl::StatusOr<Scratch> MakeScratch(int64_t floats);
  // Copies lists of numbers to the GPU, one after the other.
  absl::StatusOr<Scratch> PutNumbers(cudaStream_t stream, std::initializer_list<absl::Span<const int64_t>> lists);
  absl::StatusOr<Scratch> PutNumbers(cudaStream_t stream, std::initializer_list<absl::Span<const uint32_t>> lists);

  // Waits for all operations and uploads.
  absl::Status Synchronize();
  // Waits for all issued work, also after an error.
  void Drain();

  // Call it first in every method: it selects the GPU for this thread and returns the first error.
  absl::Status Enter() ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps the first error. Returns it, or OK if there is none.
  absl::Status Keep(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Operands = absl::InlinedVector<const CudaBuffer*, 8>;

  OperationQueue(Gpu gpu, std::unique_ptr<StreamOrder> order, MemoryPool memory, bool graphs);

  absl::StatusOr<Scratch> PutBytes(cudaStream_t stream, absl::Span<const char> bytes);

  // Called before and after an operation is launched.
  absl::Status Begin(const Operands& operands) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const Operands& operands, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // Each member outlives those below it.
  const Gpu gpu_;
  const std::unique_ptr<StreamOrder> order_;
  const std::unique_ptr<MemoryPool> memory_;
  const std::unique_ptr<HalfCopies> halves_;
  const std::unique_ptr<StagingPool> staging_;
  const std::unique_ptr<PinnedHost> pinned_;
  HostCopies copies_;
  PeerAccess peers_;
  SegmentGraphs graphs_;
  absl::Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
