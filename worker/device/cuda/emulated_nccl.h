// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "worker/device/cuda/library/nccl_library.h"

namespace ballast::emulator {

// NCCL's functions for emulated GPUs. The sum of a group runs when every stream of the group has reached it, and no
// stream continues before that.
const Nccl& EmulatedNccl();

// Results that a test sets and calls that it observes. Thread safety: one thread.
struct NcclState {
  // Return values of later calls; 0 is success.
  int init_result = 0, reduce_result = 0, async_error = 0;
  // GPU of each communicator, in order, from the last ncclCommInitAll.
  std::vector<int> gpus;
  int destroyed = 0, aborted = 0;
  int sums = 0;
};
NcclState& NcclNow();
void ResetNccl();

}  // namespace ballast::emulator
