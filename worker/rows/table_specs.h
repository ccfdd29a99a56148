// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ballast/v1/job.pb.h"
#include "ballast/v1/table.pb.h"

namespace ballast {

// Returns the tables to declare for a job's model, in the order of model.tables. Their ids are `first_id` and the
// following ones. `updates` is the length of the job for schedules without a total.
std::vector<v1::TableSpec> TableSpecs(const v1::Job& job, uint32_t first_id, uint64_t updates);

// Returns the policy of a table of the job: its own, or the job's.
const v1::ConsistencyPolicy& PolicyOf(const v1::EmbeddingTable& table, const v1::Job& job);

// Returns whether workers may pull a step's rows before they push the step before it: without a table under a policy
// that makes the pull wait for that push.
bool PullsEarly(const v1::Job& job);

}  // namespace ballast
