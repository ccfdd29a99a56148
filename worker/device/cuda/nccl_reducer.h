// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/device/collective/reducer.h"
#include "worker/device/cuda/library/nccl_library.h"
#include "worker/device/named_device.h"

namespace ballast {

// Adds up on the GPUs, beside what they compute: the host waits for nothing. A GPU that has failed makes the others'
// part of a sum wait for ever: Abort() ends that. FAILED_PRECONDITION where one of the
// devices is no GPU, UNAVAILABLE where NCCL does not connect them; the message says why.
absl::StatusOr<std::unique_ptr<Reducer>> MakeNcclReducer(const Nccl& nccl, absl::Span<const NamedDevice> devices);

}  // namespace ballast
