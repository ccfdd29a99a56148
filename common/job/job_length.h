// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ballast/v1/job.pb.h"

// Conversion of a job's examples into batches, leases, pushes and updates. The coordinator uses it to cut leases, and
// each worker to compute the length of the job's schedules, so that the two agree.
namespace ballast {

// Returns whether all workers take the same steps, in rounds: under sync and local SGD.
bool KeepsLockStep(const v1::ConsistencyPolicy& policy);

// Batches that a worker makes one push from: training.accumulate_batches, times local_steps under local SGD.
uint64_t BatchesPerPush(const v1::Job& job);

// Maximum batches in a lease: 16 or slightly more, in whole pushes; 2^20 if a push takes more than that, which then
// ends with its lease.
uint64_t BatchesPerLease(uint64_t batches_per_push);

// Examples of an epoch of a stream; see DataStream.epoch_examples.
uint64_t StreamEpochExamples(const v1::DataStream& stream);

// Updates that the job makes on each slice: in lockstep one per round of pushes, otherwise one per push of any
// worker. Exact as long as no worker is lost.
uint64_t CountUpdates(const v1::Job& job, uint64_t examples, uint32_t workers);

// Replaces a schedule total of 0 with the job's length; the schedule then follows the job's data.
v1::Optimizer WithScheduleLength(v1::Optimizer optimizer, uint64_t updates);

}  // namespace ballast
