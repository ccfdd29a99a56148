// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device.h"

namespace ballast {

class OperationQueue;

// Opens GPU options.gpu, or the first usable GPU. FAILED_PRECONDITION if there is none, RESOURCE_EXHAUSTED if its
// memory is full, UNAVAILABLE if another process has exclusive use of it; the message says what to do.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const CudaOptions& options);

// The queue that issues the device's operations; null if it is not a GPU.
OperationQueue* QueueOf(Device& device);

}  // namespace ballast
