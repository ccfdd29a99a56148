// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/peer_copy.h"

#include "worker/device/cuda/operands.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
namespace {

// An event belongs to its GPU, so each side's events are created and recorded while that GPU is current.
absl::Status Issue(OperationQueue& from, const Matrix& x, OperationQueue& to, const Matrix& y) {
  const CudaBuffer& source = gpu::Own(*x.buffer);
  const CudaBuffer& target = gpu::Own(*y.buffer);
  const cudaStream_t stream = to.order().peer();
  absl::Status status = from.Enter();
  if (status.ok()) status = from.order().BeforePeer(stream, source.use());
  if (status.ok()) status = to.Enter();
  if (status.ok()) status = to.order().BeforePeer(stream, target.use());
  if (!status.ok()) return status;
  // Without access, the driver copies through memory of its own on the host.
  to.peers().Open(from.gpu().index);
  status = CudaStatus(cudaMemcpyPeerAsync(gpu::Data(y).data, to.gpu().index, gpu::Data(x).data, from.gpu().index,
                                          x.elements() * BytesOf(source.type()), stream),
                      "cudaMemcpyPeerAsync");
  status.Update(to.order().AfterPeer(target.use()));
  target.Written();
  absl::StatusOr<Event> copied = MakeEvent();
  status.Update(copied.status());
  if (!status.ok()) return status;
  status = CudaStatus(cudaEventRecord(copied->get(), stream), "cudaEventRecord");
  if (status.ok()) status = from.Enter();
  if (!status.ok()) return status;
  // The next operation that writes x waits for its stream.
  status = CudaStatus(cudaStreamWaitEvent(from.order().peer(), copied->get()), "cudaStreamWaitEvent");
  status.Update(from.order().AfterPeer(source.use()));
  return status;
}

}  // namespace

void CopyToPeer(OperationQueue& from, const Matrix& x, OperationQueue& to, const Matrix& y) {
  gpu::CheckElements(x, y);
  if (x.elements() == 0) return;
  const absl::Status status = Issue(from, x, to, y);
  from.Keep(status).IgnoreError();
  to.Keep(status).IgnoreError();
}

}  // namespace ballast
