// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/device/cuda_options.h"
#include "worker/device/device.h"

namespace ballast {

// Opens a device of kind "cpu", "cuda", or "auto": CUDA if it is usable, otherwise the CPU. `threads`, 1 to 1024, are
// the CPU device's compute threads; `cuda` applies to a GPU. INVALID_ARGUMENT for another kind or number;
// FAILED_PRECONDITION if "cuda" is requested and not usable.
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(std::string_view kind, int threads, const CudaOptions& cuda);

}  // namespace ballast
