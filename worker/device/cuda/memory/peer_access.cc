// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/memory/peer_access.h"

#include <cuda_runtime.h>

#include <iostream>

#include "absl/status/status.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
namespace {

absl::Status OpenPool(int other, int gpu) {
  int can = 0;
  absl::Status status = CudaStatus(cudaDeviceCanAccessPeer(&can, gpu, other), "cudaDeviceCanAccessPeer");
  if (!status.ok()) return status;
  if (can == 0) return absl::FailedPreconditionError("the machine does not connect them");
  // Serves memory that the libraries allocate; pools have their own access.
  cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    error = cudaSuccess;
  }
  status = CudaStatus(error, "cudaDeviceEnablePeerAccess");
  if (!status.ok()) return status;
  cudaMemPool_t pool = nullptr;
  status = CudaStatus(cudaDeviceGetDefaultMemPool(&pool, other), "cudaDeviceGetDefaultMemPool");
  if (!status.ok()) return status;
  cudaMemAccessDesc access = {};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = gpu;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  return CudaStatus(cudaMemPoolSetAccess(pool, &access, 1), "cudaMemPoolSetAccess");
}

}  // namespace

bool PeerAccess::Open(int other) {
  if (other == gpu_) return true;
  if (const auto tried = tried_.find(other); tried != tried_.end()) return tried->second;
  const absl::Status status = OpenPool(other, gpu_);
  if (!status.ok()) {
    std::cerr << "warning: GPU " << gpu_ << " cannot reach the memory of GPU " << other << " (" << status.message()
              << "); copies between them go through the host, which is slower" << std::endl;
  }
  return tried_[other] = status.ok();
}

}  // namespace ballast
