// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/device/collective/reducer.h"
#include "worker/device/named_device.h"

namespace ballast {

// Takes the others' parts to the first device, one after the other, and adds them there: works between any devices, and
// through the host where one cannot reach the other. Needs as much of the first one's memory as the largest part.
// RESOURCE_EXHAUSTED where it has not got that.
absl::StatusOr<std::unique_ptr<Reducer>> CreateHostReducer(absl::Span<const NamedDevice> devices,
                                                           int64_t largest_elements);

}  // namespace ballast
