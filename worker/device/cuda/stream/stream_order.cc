// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/stream/stream_order.h"

#include <utility>

#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<StreamOrder>> StreamOrder::Create() {
  absl::StatusOr<Stream> compute = MakeStream();
  if (!compute.ok()) return compute.status();
  absl::StatusOr<Stream> upload = MakeStream();
  if (!upload.ok()) return upload.status();
  absl::StatusOr<Stream> download = MakeStream();
  if (!download.ok()) return download.status();
  absl::StatusOr<Stream> peer = MakeStream();
  if (!peer.ok()) return peer.status();
  return std::unique_ptr<StreamOrder>(
      new StreamOrder(*std::move(compute), *std::move(upload), *std::move(download), *std::move(peer)));
}

StreamOrder::StreamOrder(Stream compute, Stream upload, Stream download, Stream peer)
    : compute_(std::move(compute)),
      upload_(std::move(upload)),
      download_(std::move(download)),
      peer_(std::move(peer)),
      times_(compute_.get()),
      operations_(compute_.get()) {}

absl::Status StreamOrder::BeforeOperation(absl::Span<BufferUse* const> operands) {
  absl::MutexLock lock(&mutex_);
  for (BufferUse* use : operands) {
    if (use->upload_seen) continue;
    absl::Status status = CudaStatus(cudaStreamWaitEvent(compute_.get(), use->uploaded.get()), "cudaStreamWaitEvent");
    if (!status.ok()) return status;
    use->upload_seen = true;
  }
  // After the waits, which are no computation.
  times_.Begin();
  return absl::OkStatus();
}

void StreamOrder::AfterOperation(absl::Span<BufferUse* const> operands) {
  absl::MutexLock lock(&mutex_);
  const uint64_t number = operations_.Issued();
  for (BufferUse* use : operands) use->operation = number;
}

absl::Status StreamOrder::Mark() {
  absl::MutexLock lock(&mutex_);
  return operations_.NoteEnd();
}

absl::Status StreamOrder::BeforeUpload(const BufferUse& use) { return BeforePeer(upload_.get(), use); }

absl::Status StreamOrder::AfterUpload(BufferUse& use) {
  absl::MutexLock lock(&mutex_);
  return NoteWrite(use, upload_.get());
}

absl::Status StreamOrder::BeforeDownload(const BufferUse& use) { return BeforePeer(download_.get(), use); }

absl::Status StreamOrder::BeforePeer(cudaStream_t stream, const BufferUse& use) {
  absl::MutexLock lock(&mutex_);
  if (!use.upload_seen) {
    absl::Status status = CudaStatus(cudaStreamWaitEvent(stream, use.uploaded.get()), "cudaStreamWaitEvent");
    if (!status.ok()) return status;
  }
  return operations_.MakeWait(stream, use.operation);
}

absl::Status StreamOrder::AfterPeer(BufferUse& use) {
  absl::MutexLock lock(&mutex_);
  return NoteWrite(use, peer_.get());
}

absl::Status StreamOrder::NoteWrite(BufferUse& use, cudaStream_t stream) {
  if (use.uploaded == nullptr) {
    absl::StatusOr<Event> event = MakeEvent();
    if (!event.ok()) return event.status();
    use.uploaded = *std::move(event);
  }
  use.upload_seen = false;
  return CudaStatus(cudaEventRecord(use.uploaded.get(), stream), "cudaEventRecord");
}

}  // namespace ballast
