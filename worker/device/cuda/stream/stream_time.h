// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// Milliseconds that a GPU takes for what `issue` puts into the stream. Waits for it.
absl::StatusOr<float> TimeInStream(cudaStream_t stream, const std::function<absl::Status()>& issue);

}  // namespace ballast
