// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device.h"

namespace ballast {

// Opens a GPU. FAILED_PRECONDITION where this build or this machine has none, RESOURCE_EXHAUSTED where
// it is full, UNAVAILABLE where another process has it alone; the message says what to do.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options);

// CUDA's numbers of the GPUs that can be opened. FAILED_PRECONDITION where there is none.
absl::StatusOr<std::vector<int>> UsableCudaGpus();

}  // namespace ballast
