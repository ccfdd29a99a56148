// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/device/cuda/operation_queue.h"
#include "worker/device/device_types.h"

namespace ballast {

// y = x, of one type, from one GPU to another, in parallel with the computation of both: after the operations issued
// on x and y so far and before later ones. Directly if the GPUs reach each other, otherwise through the driver's memory
// on the host. The caller waits for nothing; an error stays in both queues. Call it on the thread that issues y's
// operations. Operations that another thread issues on `from` meanwhile must not touch x.
void CopyToPeer(OperationQueue& from, const Matrix& x, OperationQueue& to, const Matrix& y);

}  // namespace ballast
