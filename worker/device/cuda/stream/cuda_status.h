// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// A CUDA call's result, named by the call. RESOURCE_EXHAUSTED: no memory; UNAVAILABLE: the GPU is lost, or another
// process holds it; INTERNAL: anything else, which no caller can mend.
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

}  // namespace ballast
