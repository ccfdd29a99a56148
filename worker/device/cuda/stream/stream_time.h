// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// Measures the GPU time, in milliseconds, of the work that `issue` puts into the stream. Waits for the work to end.
absl::StatusOr<float> TimeInStream(cudaStream_t stream, const std::function<absl::Status()>& issue);

}  // namespace ballast
