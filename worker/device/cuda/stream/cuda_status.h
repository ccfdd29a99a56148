// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Converts the result of `call` to a status. RESOURCE_EXHAUSTED: no memory; UNAVAILABLE: the GPU is lost, or another
// process holds it; INTERNAL: any other error, which no caller can fix.
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

}  // namespace ballast
