// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/stream/stream_time.h"

#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
absl::StatusOr<float> TimeInStream(cudaStream_t stream, const std::function<absl::Status()>& issue) {
  absl::StatusOr<Event> begin = MakeEvent(cudaEventDefault), end = MakeEvent(cudaEventDefault);
  if (!begin.ok()) return begin.status();
  if (!end.ok()) return end.status();
  absl::Status status = CudaStatus(cudaEventRecord(begin->get(), stream), "cudaEventRecord");
  status.Update(issue());
  status.Update(CudaStatus(cudaEventRecord(end->get(), stream), "cudaEventRecord"));
  status.Update(CudaStatus(cudaEventSynchronize(end->get()), "cudaEventSynchronize"));
  if (!status.ok()) return status;
  float milliseconds = 0;
  status = CudaStatus(cudaEventElapsedTime(&milliseconds, begin->get(), end->get()), "cudaEventElapsedTime");
  if (!status.ok()) return status;
  return milliseconds;
}

}  // namespace ballast
