// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "absl/status/statusor.h"

namespace ballast {

// The functions of NCCL 2 that we call. We declare the types ourselves, with the sizes of NCCL's, because its header
// comes with NCCL and not with the CUDA toolkit.
struct Nccl {
  using Communicator = struct NcclCommunicator*;
  // The values of ncclSuccess, ncclFloat32 and ncclSum.
  static constexpr int kSuccess = 0, kFloat32 = 7, kSum = 0;

  int (*GetVersion)(int* version);
  const char* (*GetErrorString)(int result);
  int (*CommInitAll)(Communicator* communicators, int count, const int* gpus);
  int (*CommGetAsyncError)(Communicator communicator, int* error);
  int (*CommDestroy)(Communicator communicator);
  int (*CommAbort)(Communicator communicator);
  int (*GroupStart)();
  int (*GroupEnd)();
  int (*Reduce)(const void* part, void* sum, size_t count, int type, int operation, int root, Communicator communicator,
                cudaStream_t stream);
};

// Loaded by the first call and never unloaded. FAILED_PRECONDITION names what is missing.
absl::StatusOr<const Nccl*> LoadNccl();

}  // namespace ballast
