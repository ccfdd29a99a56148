// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/device/collective/reducer.h"
#include "worker/device/cuda/library/nccl_library.h"
#include "worker/device/named_device.h"

namespace ballast {

// Sums on the GPUs, in parallel with their computation; the host waits for nothing. After a GPU fails, the others
// wait for it forever in a sum, until Abort(). FAILED_PRECONDITION if a device is not a GPU, UNAVAILABLE if NCCL does
// not connect them; the message says why.
absl::StatusOr<std::unique_ptr<Reducer>> MakeNcclReducer(const Nccl& nccl, absl::Span<const NamedDevice> devices);

}  // namespace ballast
