// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"

// What a job's durability promises when one of its processes dies.
namespace ballast {

// How long the others wait for one that was lost to return: return_seconds, or 60 s where that is not set.
absl::Duration ReturnTime(const v1::Durability& durability);

// Whether a server that died comes back with what it held, while the others wait for it: under wal, wal_sync and
// replica. Under checkpoint all go back together instead.
bool OutlivesAServer(const v1::Durability& durability);

// Whether, where there is a folder for them, checkpoints of the job are taken; how often (60 s where that is not set),
// and how many of them are kept (2).
bool TakesCheckpoints(const v1::Durability& durability);
absl::Duration CheckpointInterval(const v1::Durability& durability);
uint32_t CheckpointsKept(const v1::Durability& durability);

}  // namespace ballast
