// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/device/collective/reducer.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device.h"
#include "worker/device/named_device.h"

namespace ballast {

// Opens a GPU. FAILED_PRECONDITION if this build has no CUDA or this machine no GPU, RESOURCE_EXHAUSTED if the GPU's
// memory is full, UNAVAILABLE if another process has exclusive use of it; the message says what to do.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options);

// CUDA indices of the GPUs that can be opened. FAILED_PRECONDITION if there is none.
absl::StatusOr<std::vector<int>> UsableCudaGpus();

// Sums on the GPUs. FAILED_PRECONDITION if a device is not a GPU or a library is missing, UNAVAILABLE if the GPUs
// cannot be connected.
absl::StatusOr<std::unique_ptr<Reducer>> CreateCudaReducer(absl::Span<const NamedDevice> devices);

}  // namespace ballast
