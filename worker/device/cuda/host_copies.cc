// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/host_copies.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "worker/device/cuda/cuda_status.h"

namespace ballast {
namespace {

// A part of a download on its way.
struct Part {
  StagingPool::Piece* piece;
  absl::Span<float> values;
};

}  // namespace

absl::Status HostCopies::Upload(absl::Span<const float> values, const CudaBuffer& to, int64_t offset) {
  if (values.empty()) return absl::OkStatus();
  const cudaStream_t stream = order_.upload();
  absl::Status status = order_.BeforeUpload(to.use());
  float* target = to.data() + offset;
  while (status.ok() && !values.empty()) {
    absl::StatusOr<StagingPool::Piece*> piece = staging_.Take();
    status = piece.status();
    if (!status.ok()) break;
    const absl::Span<const float> part = values.subspan(0, staging_.piece_floats());
    const size_t bytes = part.size() * sizeof(float);
    std::memcpy((*piece)->floats(), part.data(), bytes);
    status = CudaStatus(cudaMemcpyAsync(target, (*piece)->floats(), bytes, cudaMemcpyHostToDevice, stream),
                        "cudaMemcpyAsync");
    status.Update(staging_.GiveBack(*piece, stream));
    target += part.size();
    values.remove_prefix(part.size());
  }
  status.Update(order_.AfterUpload(to.use()));
  return status;
}

absl::Status HostCopies::Download(const CudaBuffer& from, int64_t offset, absl::Span<float> values) {
  if (values.empty()) return absl::OkStatus();
  const cudaStream_t stream = order_.download();
  absl::Status status = order_.BeforeDownload(from.use());
  const float* source = from.data() + offset;
  std::deque<Part> parts;
  const auto issue = [&](StagingPool::Piece* piece) {
    const absl::Span<float> part = values.subspan(0, staging_.piece_floats());
    parts.push_back({piece, part});
    absl::Status issued = CudaStatus(
        cudaMemcpyAsync(piece->floats(), source, part.size() * sizeof(float), cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
    issued.Update(CudaStatus(cudaEventRecord(piece->used.get(), stream), "cudaEventRecord"));
    source += part.size();
    values.remove_prefix(part.size());
    return issued;
  };
  while (status.ok() && (!values.empty() || !parts.empty())) {
    // Two on their way: one that the GPU writes while the host reads the other. Who holds one waits for no second, or
    // many downloads at once could wait for each other.
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
    std::memcpy(part.values.data(), part.piece->floats(), part.values.size() * sizeof(float));
    status = staging_.GiveBack(part.piece, stream);
  }
  for (const Part& part : parts) staging_.GiveBack(part.piece, stream).IgnoreError();
  return status;
}

}  // namespace ballast
