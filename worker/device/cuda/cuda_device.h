// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device.h"

namespace ballast {

class OperationQueue;

// Opens the GPU of options.gpu, else the first usable one. FAILED_PRECONDITION where there is none,
// RESOURCE_EXHAUSTED where it is full, UNAVAILABLE where another process has it alone; the message says what to do.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const CudaOptions& options);

// What issues its operations; null where it is no GPU.
OperationQueue* QueueOf(Device& device);

}  // namespace ballast
