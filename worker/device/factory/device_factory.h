// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device.h"

namespace ballast {

// Opens the device of a kind: "cpu", "cuda", or "auto", which is CUDA where it is usable and else
// the CPU. `threads`, 1 to 1024, is how many the CPU device computes with; `cuda` is for a GPU. INVALID_ARGUMENT for
// another kind or number; FAILED_PRECONDITION where "cuda" is asked for and cannot be had.
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(std::string_view kind, int threads, const CudaOptions& cuda);

}  // namespace ballast
