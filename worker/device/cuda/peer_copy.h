// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/device/cuda/operation_queue.h"
#include "worker/device/device_types.h"

namespace ballast {

// y = x, of one type, from one GPU to another: beside what both compute, after what was issued on x and y and before
// what comes. The host waits for nothing; an error stays in both queues. By the thread that issues y's operations; what
// another thread issues on `from` meanwhile may not touch x.
void CopyToPeer(OperationQueue& from, const Matrix& x, OperationQueue& to, const Matrix& y);

}  // namespace ballast
