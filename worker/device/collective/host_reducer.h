// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/device/collective/reducer.h"
#include "worker/device/named_device.h"

namespace ballast {

// Copies the other devices' parts to the first device, one after the other, and adds them there. Works between any
// devices, through the host if one cannot reach the other. Needs room for the largest part on the first device:
// RESOURCE_EXHAUSTED if that is short.
absl::StatusOr<std::unique_ptr<Reducer>> CreateHostReducer(absl::Span<const NamedDevice> devices,
                                                           int64_t largest_elements);

}  // namespace ballast
