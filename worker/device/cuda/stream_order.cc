// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/stream_order.h"

#include <utility>

#include "worker/device/cuda/cuda_status.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<StreamOrder>> StreamOrder::Create() {
  absl::StatusOr<Stream> compute = MakeStream();
  if (!compute.ok()) return compute.status();
  absl::StatusOr<Stream> upload = MakeStream();
  if (!upload.ok()) return upload.status();
  absl::StatusOr<Stream> download = MakeStream();
  if (!download.ok()) return download.status();
  return std::unique_ptr<StreamOrder>(new StreamOrder(*std::move(compute), *std::move(upload), *std::move(download)));
}

StreamOrder::StreamOrder(Stream compute, Stream upload, Stream download)
    : compute_(std::move(compute)),
      upload_(std::move(upload)),
      download_(std::move(download)),
      operations_(compute_.get()) {}

absl::Status StreamOrder::BeforeOperation(absl::Span<BufferUse* const> operands) {
  absl::MutexLock lock(&mutex_);
  for (BufferUse* use : operands) {
    if (use->upload_seen) continue;
    absl::Status status = CudaStatus(cudaStreamWaitEvent(compute_.get(), use->uploaded.get()), "cudaStreamWaitEvent");
    if (!status.ok()) return status;
    use->upload_seen = true;
  }
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

absl::Status StreamOrder::BeforeUpload(const BufferUse& use) {
  absl::MutexLock lock(&mutex_);
  return operations_.MakeWait(upload_.get(), use.operation);
}

absl::Status StreamOrder::AfterUpload(BufferUse& use) {
  absl::MutexLock lock(&mutex_);
  if (use.uploaded == nullptr) {
    absl::StatusOr<Event> event = MakeEvent();
    if (!event.ok()) return event.status();
    use.uploaded = *std::move(event);
  }
  use.upload_seen = false;
  return CudaStatus(cudaEventRecord(use.uploaded.get(), upload_.get()), "cudaEventRecord");
}

absl::Status StreamOrder::BeforeDownload(const BufferUse& use) {
  absl::MutexLock lock(&mutex_);
  if (!use.upload_seen) {
    absl::Status status = CudaStatus(cudaStreamWaitEvent(download_.get(), use.uploaded.get()), "cudaStreamWaitEvent");
    if (!status.ok()) return status;
  }
  return operations_.MakeWait(download_.get(), use.operation);
}

}  // namespace ballast
