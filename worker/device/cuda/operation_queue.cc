// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/operation_queue.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace ballast {
namespace {

// 4 MiB: large enough for the bus's full speed, small enough that a copy begins soon.
constexpr int64_t kPieceFloats = int64_t{1} << 20;
constexpr size_t kMaxPieces = 16;

absl::InlinedVector<BufferUse*, 8> Uses(absl::Span<const CudaBuffer* const> operands) {
  absl::InlinedVector<BufferUse*, 8> uses;
  for (const CudaBuffer* buffer : operands) uses.push_back(&buffer->use());
  return uses;
}

// The bytes of the lists, one after the other.
template <typename Number>
std::vector<char> Joined(std::initializer_list<absl::Span<const Number>> lists) {
  std::vector<char> bytes;
  for (const absl::Span<const Number> list : lists) {
    const char* const first = reinterpret_cast<const char*>(list.data());
    bytes.insert(bytes.end(), first, first + list.size() * sizeof(Number));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OperationQueue>> OperationQueue::Create(const Gpu& gpu, bool graphs) {
  absl::Status status = CudaStatus(cudaSetDevice(gpu.index), "cudaSetDevice");
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<StreamOrder>> order = StreamOrder::Create();
  if (!order.ok()) return order.status();
  absl::StatusOr<MemoryPool> memory = MemoryPool::Create(gpu.index, (*order)->compute());
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<OperationQueue>(new OperationQueue(gpu, *std::move(order), *std::move(memory), graphs));
}

OperationQueue::OperationQueue(Gpu gpu, std::unique_ptr<StreamOrder> order, MemoryPool memory, bool graphs)
    : gpu_(std::move(gpu)),
      order_(std::move(order)),
      memory_(std::make_unique<MemoryPool>(std::move(memory))),
      halves_(std::make_unique<HalfCopies>(memory_.get())),
      staging_(std::make_unique<StagingPool>(kPieceFloats, kMaxPieces)),
      pinned_(std::make_unique<PinnedHost>()),
      copies_(order_.get(), staging_.get(), pinned_.get()),
      peers_(gpu_.index),
      graphs_(order_.get(), memory_.get(), halves_.get(), graphs) {}

absl::Status OperationQueue::Synchronize() {
  if (absl::Status status = Enter(); !status.ok()) return status;
  for (const cudaStream_t stream : {order_->upload(), order_->peer(), order_->compute()}) {
    const absl::Status status = Keep(CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void OperationQueue::Drain() {
  cudaSetDevice(gpu_.index);
  for (const cudaStream_t stream : {order_->compute(), order_->upload(), order_->download(), order_->peer()}) {
    cudaStreamSynchronize(stream);
  }
}

void OperationQueue::Repeat(const Segment& segment, absl::FunctionRef<void()> issue) {
  if (!Enter().ok()) return;
  order_->times().Open(segment.name);
  graphs_.Repeat(segment, issue);
  order_->times().Close();
}

absl::Status OperationQueue::Begin(const Operands& operands) {
  // A graph's launch waits for the uploads to its operands, and a capture's errors are not the GPU's.
  if (graphs_.capturing()) return graphs_.Note(operands);
  if (absl::Status status = Enter(); !status.ok()) return status;
  if (absl::Status status = graphs_.Note(operands); !status.ok()) return status;
  return order_->BeforeOperation(Uses(operands));
}

void OperationQueue::End(const Operands& operands, const absl::Status& status) {
  if (graphs_.capturing()) return graphs_.Fail(status);
  order_->AfterOperation(Uses(operands));
  Keep(status).IgnoreError();
}

absl::StatusOr<Scratch> OperationQueue::MakeScratch(int64_t floats) {
  return Scratch::Make(memory_.get(), floats * static_cast<int64_t>(sizeof(float)));
}

absl::StatusOr<Scratch> OperationQueue::PutNumbers(cudaStream_t stream,
                                                   std::initializer_list<absl::Span<const int64_t>> lists) {
  return PutBytes(stream, Joined(lists));
}

absl::StatusOr<Scratch> OperationQueue::PutNumbers(cudaStream_t stream,
                                                   std::initializer_list<absl::Span<const uint32_t>> lists) {
  return PutBytes(stream, Joined(lists));
}

absl::StatusOr<Scratch> OperationQueue::PutBytes(cudaStream_t stream, absl::Span<const char> bytes) {
  // A graph would read the host's memory again at each launch.
  if (graphs_.capturing()) return absl::FailedPreconditionError("cuda device: cannot capture lists of numbers");
  absl::StatusOr<Scratch> scratch = Scratch::Make(memory_.get(), static_cast<int64_t>(bytes.size()));
  if (!scratch.ok()) return scratch;
  const size_t piece_bytes = staging_->piece_floats() * sizeof(float);
  for (size_t done = 0; done < bytes.size(); done += piece_bytes) {
    absl::StatusOr<StagingPool::Piece*> piece = staging_->Take();
    if (!piece.ok()) return piece.status();
    const size_t part = std::min(piece_bytes, bytes.size() - done);
    std::memcpy((*piece)->floats(), bytes.data() + done, part);
    absl::Status status = CudaStatus(cudaMemcpyAsync(static_cast<char*>(scratch->bytes()) + done, (*piece)->floats(),
                                                     part, cudaMemcpyHostToDevice, stream),
                                     "cudaMemcpyAsync");
    status.Update(staging_->GiveBack(*piece, stream));
    if (!status.ok()) return status;
  }
  return scratch;
}

absl::Status OperationQueue::Enter() {
  {
    absl::MutexLock lock(&mutex_);
    if (!first_error_.ok()) return first_error_;
  }
  return Keep(CudaStatus(cudaSetDevice(gpu_.index), "cudaSetDevice"));
}

absl::Status OperationQueue::Keep(const absl::Status& status) {
  if (status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  first_error_.Update(status);
  return first_error_;
}

}  // namespace ballast
