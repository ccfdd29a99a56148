// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "worker/device/cuda/stream/cuda_status.h"
#include "worker/device/cuda/stream/segment_times.h"
#include "worker/device/cuda/stream/timeline.h"

namespace ballast {

// Records when a piece of device memory was last used. Only StreamOrder touches the fields.
struct BufferUse {
  // Number of the last operation on the memory.
  uint64_t operation = 0;
  // Recorded after each upload and peer copy; null before the first.
  Event uploaded;
  // True once operations need not wait for `uploaded`.
  bool upload_seen = true;
};

// Owns a device's streams: one computes operations; three more run uploads, downloads and copies between GPUs in
// parallel. Each stream waits only for the work it needs: an operation for the uploads to its operands, a copy for
// the last operation on its buffer. The host waits for nothing here. Downloads are not recorded, because their issuer
// waits for them before anyone may use the buffer again.
//
// Thread safety: one thread issues operations; meanwhile others may copy from and to buffers that it does not use.
class StreamOrder {
 public:
  static absl::StatusOr<std::unique_ptr<StreamOrder>> Create();

  cudaStream_t compute() const { return compute_.get(); }
  cudaStream_t upload() const { return upload_.get(); }
  cudaStream_t download() const { return download_.get(); }
  cudaStream_t peer() const { return peer_.get(); }
  // Times of the segments in compute(); only for the thread that issues operations.
  SegmentTimes& times() { return times_; }

  // Call these before and after enqueuing an operation in compute(); the second one also if enqueuing failed.
  absl::Status BeforeOperation(absl::Span<BufferUse* const> operands) ABSL_LOCKS_EXCLUDED(mutex_);
  void AfterOperation(absl::Span<BufferUse* const> operands) ABSL_LOCKS_EXCLUDED(mutex_);

  // Copies issued from now on do not wait for later operations that they do not need.
  absl::Status Mark() ABSL_LOCKS_EXCLUDED(mutex_);

  // Call these before and after enqueuing copies to a buffer in upload().
  absl::Status BeforeUpload(const BufferUse& use) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AfterUpload(BufferUse& use) ABSL_LOCKS_EXCLUDED(mutex_);

  // Call these before and after work on a buffer in `stream`, possibly another GPU's, that runs in parallel with
  // operations. AfterPeer records in this device's peer() and requires its GPU to be current.
  absl::Status BeforePeer(cudaStream_t stream, const BufferUse& use) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AfterPeer(BufferUse& use) ABSL_LOCKS_EXCLUDED(mutex_);

  // Call it before enqueuing copies from a buffer in download().
  absl::Status BeforeDownload(const BufferUse& use) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  StreamOrder(Stream compute, Stream upload, Stream download, Stream peer);

  absl::Status NoteWrite(BufferUse& use, cudaStream_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Stream compute_;
  const Stream upload_;
  const Stream download_;
  const Stream peer_;
  SegmentTimes times_;
  absl::Mutex mutex_;
  // Operations of compute_. This mutex guards each BufferUse, too.
  Timeline operations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
