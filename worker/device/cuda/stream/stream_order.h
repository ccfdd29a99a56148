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
#include "worker/device/cuda/stream/handles.h"
#include "worker/device/cuda/stream/timeline.h"

namespace ballast {

// When a piece of device memory was last used. A StreamOrder's; others leave its fields alone.
struct BufferUse {
  // Number of the last operation on it.
  uint64_t operation = 0;
  // Recorded after each upload and exchange; null before the first.
  Event uploaded;
  // Whether operations need not wait for it any more.
  bool upload_seen = true;
};

// Owns a device's streams: operations are computed in one; uploads, downloads and what is exchanged with other GPUs run
// beside it in one each. It makes each wait for what it needs of the others and no more: an operation for the uploads
// to its operands, a copy for the last operation on its buffer. The host waits for nothing here.
//
// Downloads need no record: who issues one waits for its end before anyone may use the buffer again.
//
// Thread safety: one thread issues operations; beside it others may copy from and to buffers that it does not use.
class StreamOrder {
 public:
  static absl::StatusOr<std::unique_ptr<StreamOrder>> Create();

  cudaStream_t compute() const { return compute_.get(); }
  cudaStream_t upload() const { return upload_.get(); }
  cudaStream_t download() const { return download_.get(); }
  cudaStream_t peer() const { return peer_.get(); }

  // Around whatever puts an operation on these into compute(). After() also where that failed.
  absl::Status BeforeOperation(absl::Span<BufferUse* const> operands) ABSL_LOCKS_EXCLUDED(mutex_);
  void AfterOperation(absl::Span<BufferUse* const> operands) ABSL_LOCKS_EXCLUDED(mutex_);

  // Copies issued from now on wait for no operation that comes later, where they need none.
  absl::Status Mark() ABSL_LOCKS_EXCLUDED(mutex_);

  // Around copies to a buffer in upload().
  absl::Status BeforeUpload(const BufferUse& use) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AfterUpload(BufferUse& use) ABSL_LOCKS_EXCLUDED(mutex_);

  // Around what reads or writes a buffer beside operations in `stream`, which may be another GPU's. After(), in peer()
  // of this one: with the GPU the thread's.
  absl::Status BeforePeer(cudaStream_t stream, const BufferUse& use) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AfterPeer(BufferUse& use) ABSL_LOCKS_EXCLUDED(mutex_);

  // Before copies from a buffer in download().
  absl::Status BeforeDownload(const BufferUse& use) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  StreamOrder(Stream compute, Stream upload, Stream download, Stream peer);

  absl::Status NoteWrite(BufferUse& use, cudaStream_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Stream compute_;
  const Stream upload_;
  const Stream download_;
  const Stream peer_;
  absl::Mutex mutex_;
  // Of compute_. Each BufferUse is guarded by this mutex, too.
  Timeline operations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
