// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"

namespace ballast {

// Calls `work` once with each of 0 to count - 1, on this thread and up to threads - 1 others, in any order; returns
// when all calls have returned. `work` may be called from several threads at once.
void ParallelFor(size_t count, int threads, absl::FunctionRef<void(size_t)> work);

// Number of cores that the process may use; at least 1.
int CoreCount();

}  // namespace ballast
