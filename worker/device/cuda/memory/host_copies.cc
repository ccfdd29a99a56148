// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/memory/host_copies.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/codecs/codec.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
namespace {

// A part of a download that is in progress.
struct Part {
  StagingPool::Piece* piece;
  absl::Span<float> values;
};

// One of several downloads into one piece: where its elements are there.
struct Packed {
  const HostCopy* copy;
  const char* elements;
};

// Distance between the elements of downloads into one piece: a line of the GPU's cache.
constexpr size_t kPackedAlignment = 128;

const CudaBuffer& Own(const Buffer& buffer) { return static_cast<const CudaBuffer&>(buffer); }

// The codec of 16-bit elements, which have the wire's encoding.
const Codec& CodecOf(ElementType type) {
  return **FindCodec(type == ElementType::kBf16 ? v1::ENCODING_BF16 : v1::ENCODING_FP16);
}

void ToElements(absl::Span<const float> values, ElementType type, void* elements) {
  if (type == ElementType::kFp32) {
    std::memcpy(elements, values.data(), values.size() * sizeof(float));
  } else {
    CodecOf(type).Encode(values, 0, static_cast<char*>(elements));
  }
}

absl::Status ToFloats(const void* elements, ElementType type, absl::Span<float> values) {
  if (type == ElementType::kFp32) {
    std::memcpy(values.data(), elements, values.size() * sizeof(float));
    return absl::OkStatus();
  }
  const absl::string_view payload(static_cast<const char*>(elements), values.size() * BytesOf(type));
  return CodecOf(type).Decode({&payload, 1}, values);
}

constexpr absl::Duration kTimeout = absl::Minutes(1);

}  // namespace

size_t HostCopies::PieceElements(ElementType type) const {
  return staging_.piece_floats() * sizeof(float) / BytesOf(type);
}

absl::Status HostCopies::Upload(absl::Span<const float> values, const CudaBuffer& to, int64_t offset) {
  if (values.empty()) return absl::OkStatus();
  if (to.type() == ElementType::kFp32 && pinned_.Contains(values)) return UploadPinned(values, to, offset);
  const cudaStream_t stream = order_.upload();
  absl::Status status = order_.BeforeUpload(to.use());
  const ElementType type = to.type();
  char* target = static_cast<char*>(to.data()) + offset * BytesOf(type);
  while (status.ok() && !values.empty()) {
    absl::StatusOr<StagingPool::Piece*> piece = staging_.Take();
    status = piece.status();
    if (!status.ok()) break;
    const absl::Span<const float> part = values.subspan(0, PieceElements(type));
    const size_t bytes = part.size() * BytesOf(type);
    ToElements(part, type, (*piece)->floats());
    status = CudaStatus(cudaMemcpyAsync(target, (*piece)->floats(), bytes, cudaMemcpyHostToDevice, stream),
                        "cudaMemcpyAsync");
    status.Update(staging_.GiveBack(*piece, stream));
    target += bytes;
    values.remove_prefix(part.size());
  }
  status.Update(order_.AfterUpload(to.use()));
  return status;
}

absl::Status HostCopies::UploadPinned(absl::Span<const float> values, const CudaBuffer& to, int64_t offset) {
  absl::StatusOr<Event> copied = MakeEvent();
  if (!copied.ok()) return copied.status();
  const cudaStream_t stream = order_.upload();
  absl::Status status = order_.BeforeUpload(to.use());
  if (status.ok()) {
    status = CudaStatus(cudaMemcpyAsync(static_cast<float*>(to.data()) + offset, values.data(),
                                        values.size() * sizeof(float), cudaMemcpyHostToDevice, stream),
                        "cudaMemcpyAsync");
  }
  if (status.ok()) status = CudaStatus(cudaEventRecord(copied->get(), stream), "cudaEventRecord");
  status.Update(order_.AfterUpload(to.use()));
  if (!status.ok()) return status;
  // The caller may change the values afterwards.
  return CudaStatus(cudaEventSynchronize(copied->get()), "cudaEventSynchronize");
}

absl::Status HostCopies::DownloadPinned(const CudaBuffer& from, int64_t offset, absl::Span<float> values) {
  absl::StatusOr<Event> copied = MakeEvent();
  if (!copied.ok()) return copied.status();
  const cudaStream_t stream = order_.download();
  absl::Status status = order_.BeforeDownload(from.use());
  if (!status.ok()) return status;
  status = CudaStatus(cudaMemcpyAsync(values.data(), static_cast<const float*>(from.data()) + offset,
                                      values.size() * sizeof(float), cudaMemcpyDeviceToHost, stream),
                      "cudaMemcpyAsync");
  if (status.ok()) status = CudaStatus(cudaEventRecord(copied->get(), stream), "cudaEventRecord");
  if (!status.ok()) return status;
  return CudaStatus(cudaEventSynchronize(copied->get()), "cudaEventSynchronize");
}

absl::Status HostCopies::Download(const CudaBuffer& from, int64_t offset, absl::Span<float> values) {
  if (values.empty()) return absl::OkStatus();
  if (from.type() == ElementType::kFp32 && pinned_.Contains(values)) return DownloadPinned(from, offset, values);
  const cudaStream_t stream = order_.download();
  absl::Status status = order_.BeforeDownload(from.use());
  const ElementType type = from.type();
  const char* source = static_cast<const char*>(from.data()) + offset * BytesOf(type);
  std::deque<Part> parts;
  const auto issue = [&](StagingPool::Piece* piece) {
    const absl::Span<float> part = values.subspan(0, PieceElements(type));
    const size_t bytes = part.size() * BytesOf(type);
    parts.push_back({piece, part});
    absl::Status issued =
        CudaStatus(cudaMemcpyAsync(piece->floats(), source, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    issued.Update(CudaStatus(cudaEventRecord(piece->used.get(), stream), "cudaEventRecord"));
    source += bytes;
    values.remove_prefix(part.size());
    return issued;
  };
  while (status.ok() && (!values.empty() || !parts.empty())) {
    // Keeps two pieces in progress: the GPU writes one while the host reads the other. A download that holds a piece
    // does not wait for a second one, or many concurrent downloads could deadlock.
    while (status.ok() && !values.empty() && parts.size() < 2) {
      absl::StatusOr<StagingPool::Piece*> piece = parts.empty() ? staging_.Take() : staging_.TakeFree();
      status = piece.status();
      if (!status.ok() || *piece == nullptr) break;
      status = issue(*piece);
    }
    if (!status.ok()) break;
    const Part part = parts.front();
    status = CudaStatus(cudaEventSynchronize(part.piece->used.get()), "cudaEventSynchronize");
    if (!status.ok()) break;
    parts.pop_front();
    status = ToFloats(part.piece->floats(), type, part.values);
    status.Update(staging_.GiveBack(part.piece, stream));
  }
  for (const Part& part : parts) staging_.GiveBack(part.piece, stream).IgnoreError();
  return status;
}

absl::Status HostCopies::DownloadAll(absl::Span<const HostCopy> copies) {
  absl::StatusOr<StagingPool::Piece*> taken = staging_.Take();
  if (!taken.ok()) return taken.status();
  StagingPool::Piece* const piece = *taken;
  const cudaStream_t stream = order_.download();
  std::vector<Packed> packed;
  std::vector<const HostCopy*> apart;
  absl::Status status;
  char* next = static_cast<char*>(piece->memory.get());
  size_t left = staging_.piece_floats() * sizeof(float);
  for (const HostCopy& copy : copies) {
    const CudaBuffer& from = Own(*copy.from);
    const size_t bytes = copy.values.size() * BytesOf(from.type());
    const size_t room = (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
    if (copy.values.empty()) continue;
    if (room > left || pinned_.Contains(copy.values)) {
      apart.push_back(&copy);
      continue;
    }
    status = order_.BeforeDownload(from.use());
    if (status.ok()) {
      status = CudaStatus(cudaMemcpyAsync(next, from.data(), bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    }
    if (!status.ok()) break;
    packed.push_back({&copy, next});
    next += room;
    left -= room;
  }
  if (status.ok()) status = CudaStatus(cudaEventRecord(piece->used.get(), stream), "cudaEventRecord");
  if (status.ok()) status = CudaStatus(cudaEventSynchronize(piece->used.get()), "cudaEventSynchronize");
  for (const Packed& each : packed) {
    if (status.ok()) status = ToFloats(each.elements, Own(*each.copy->from).type(), each.copy->values);
  }
  status.Update(staging_.GiveBack(piece, stream));
  for (const HostCopy* copy : apart) {
    if (status.ok()) status = Download(Own(*copy->from), 0, copy->values);
  }
  return status;
}

absl::StatusOr<StagingPool::Piece*> StagingPool::Take() {
  absl::StatusOr<Piece*> piece;
  {
    absl::MutexLock lock(&mutex_);
    piece = TakeLocked();
    if (!piece.ok()) return piece;
    if (*piece == nullptr) {
      const auto one_is_back = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !free_.empty(); };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&one_is_back), kTimeout)) {
        return absl::DeadlineExceededError(absl::StrCat("cuda device: timed out after ", absl::FormatDuration(kTimeout),
                                                        " waiting for one of ", most_pieces_,
                                                        " pieces of pinned memory"));
      }
      piece = free_.front();
      free_.pop_front();
    }
  }
  // Work issued on it may still run.
  absl::Status status = CudaStatus(cudaEventSynchronize((*piece)->used.get()), "cudaEventSynchronize");
  if (status.ok()) return piece;
  absl::MutexLock lock(&mutex_);
  free_.push_back(*piece);
  return status;
}

absl::StatusOr<StagingPool::Piece*> StagingPool::TakeFree() {
  absl::MutexLock lock(&mutex_);
  if (!free_.empty() && cudaEventQuery(free_.front()->used.get()) != cudaSuccess && pieces_.size() == most_pieces_) {
    return nullptr;
  }
  return TakeLocked();
}

absl::StatusOr<StagingPool::Piece*> StagingPool::TakeLocked() {
  // Makes another piece instead of waiting, if the limit allows it.
  const bool idle = !free_.empty() && cudaEventQuery(free_.front()->used.get()) == cudaSuccess;
  if (!idle && pieces_.size() < most_pieces_) return MakeLocked();
  if (free_.empty()) return nullptr;
  Piece* const piece = free_.front();
  free_.pop_front();
  return piece;
}

absl::StatusOr<StagingPool::Piece*> StagingPool::MakeLocked() {
  absl::StatusOr<PinnedMemory> memory = MakePinnedMemory(piece_floats_ * sizeof(float));
  if (!memory.ok()) return memory.status();
  absl::StatusOr<Event> used = MakeEvent();
  if (!used.ok()) return used.status();
  pieces_.push_back(std::make_unique<Piece>(Piece{*std::move(memory), *std::move(used)}));
  return pieces_.back().get();
}

absl::Status StagingPool::GiveBack(Piece* piece, cudaStream_t stream) {
  const absl::Status status = CudaStatus(cudaEventRecord(piece->used.get(), stream), "cudaEventRecord");
  absl::MutexLock lock(&mutex_);
  free_.push_back(piece);
  return status;
}

}  // namespace ballast
