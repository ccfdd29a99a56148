// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda_device.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options) { return OpenCudaDevice(options); }

}  // namespace ballast
