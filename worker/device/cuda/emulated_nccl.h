// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "worker/device/cuda/library/nccl_library.h"

namespace ballast::emulator {

// NCCL's functions over emulated GPUs: a group's sum runs once the streams of all are there, and none goes on before
// it.
const Nccl& EmulatedNccl();

// What tests set, and what they see. Thread safety: one thread.
struct NcclState {
  // What the calls answer from now on; 0 is success.
  int init_result = 0, reduce_result = 0, async_error = 0;
  // Of each communicator in its order, by the last ncclCommInitAll.
  std::vector<int> gpus;
  int destroyed = 0, aborted = 0;
  int sums = 0;
};
NcclState& NcclNow();
void ResetNccl();

}  // namespace ballast::emulator
