// SPDX-License-Identifier: Apache-2.0
// Owners of CUDA handles. They ignore the errors of destruction, which repeat errors seen before.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Converts the result of `call` to a status. RESOURCE_EXHAUSTED: no memory; UNAVAILABLE: the GPU is lost, or another
// process holds it; INTERNAL: any other error, which no caller can fix.
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamDeleter>;

struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDeleter>;

struct PinnedDeleter {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};
using PinnedMemory = std::unique_ptr<void, PinnedDeleter>;

// A stream that does not wait for the default stream.
inline absl::StatusOr<Stream> MakeStream() {
  cudaStream_t stream = nullptr;
  absl::Status status =
      CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  if (!status.ok()) return status;
  return Stream(stream);
}

// An event; without timing it is cheaper.
inline absl::StatusOr<Event> MakeEvent(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  absl::Status status = CudaStatus(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  if (!status.ok()) return status;
  return Event(event);
}

inline absl::StatusOr<PinnedMemory> MakePinnedMemory(size_t bytes) {
  void* memory = nullptr;
  absl::Status status = CudaStatus(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "cudaHostAlloc");
  if (!status.ok()) return status;
  return PinnedMemory(memory);
}

}  // namespace ballast
