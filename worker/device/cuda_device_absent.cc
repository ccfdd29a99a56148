// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "worker/device/cuda_device.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice() {
  return absl::FailedPreconditionError(
      "--device cuda: this build has no CUDA support; use --device cpu, or auto to take what there "
      "is");
}

}  // namespace ballast
