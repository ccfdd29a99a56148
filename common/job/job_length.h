// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ballast/v1/job.pb.h"

// How a job's examples become batches, leases, pushes and updates. The coordinator cuts leases by it, and each worker
// tells from it how long the job's schedules are, so the two agree.
namespace ballast {

// Whether all workers take the same steps, in rounds: under sync and local SGD.
bool KeepsLockStep(const v1::ConsistencyPolicy& policy);

// How many batches a worker makes one push from: training.accumulate_batches, times local_steps under local SGD.
uint64_t BatchesPerPush(const v1::Job& job);

// How many batches a lease has at the most: 16 or a little more, whole pushes; 2^20 where a push takes more than that,
// which then ends with its lease.
uint64_t BatchesPerLease(uint64_t batches_per_push);

// How many updates the job makes on each slice: in lock step one for each round of pushes, else one for each push of
// any worker. Exact as long as no worker is away.
uint64_t CountUpdates(const v1::Job& job, uint64_t examples, uint32_t workers);

// The optimizer with the job's length wherever its schedule has a total of 0: it then follows the job's data.
v1::Optimizer WithScheduleLength(v1::Optimizer optimizer, uint64_t updates);

}  // namespace ballast
