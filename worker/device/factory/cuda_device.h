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

// Opens a GPU. FAILED_PRECONDITION where this build or this machine has none, RESOURCE_EXHAUSTED where
// it is full, UNAVAILABLE where another process has it alone; the message says what to do.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options);

// CUDA's numbers of the GPUs that can be opened. FAILED_PRECONDITION where there is none.
absl::StatusOr<std::vector<int>> UsableCudaGpus();

// Adds up on GPUs. FAILED_PRECONDITION where one of the devices is none or a library is missing, UNAVAILABLE where the
// GPUs cannot be connected.
absl::StatusOr<std::unique_ptr<Reducer>> CreateCudaReducer(absl::Span<const NamedDevice> devices);

}  // namespace ballast
