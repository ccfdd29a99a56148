// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/device/device.h"

namespace ballast {

// Opens the first usable GPU. FAILED_PRECONDITION where this build or this machine has none; the
// message says which and what to do.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice();

}  // namespace ballast
