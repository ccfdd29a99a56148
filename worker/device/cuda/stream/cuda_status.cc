// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/stream/cuda_status.h"

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// Codes of a GPU that failed or disappeared; some have no name in older toolkits.
bool MeansLost(cudaError_t error) {
  switch (error) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoDevice:
    case cudaErrorECCUncorrectable:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  // Clears the thread's error, which a later check would otherwise report for the wrong call.
  cudaGetLastError();
  const std::string message =
      absl::StrCat("cuda device: ", call, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  if (MeansLost(error)) {
    return absl::UnavailableError(
        absl::StrCat(message, "; the GPU is lost or held by another process, see nvidia-smi and the kernel's log"));
  }
  return absl::InternalError(message);
}

}  // namespace ballast
