// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/job.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/run/summary.h"

namespace ballast {

// Sets the name, the mode and the encodings of the job.
void AddJob(const v1::Job& job, Summary& summary);

// Sets the figures that the coordinator sums up over all workers, except those of the evaluation.
void AddProgress(const v1::JobProgress& progress, Summary& summary);

// Sets the test results.
void AddEvaluation(const v1::Evaluation& evaluation, Summary& summary);

// Adds the distributions of staleness and waits that the shards counted, the time since when, and the rows of all
// tables, if there are tables.
void AddShards(absl::Span<const v1::GetStatusResponse> shards, Summary& summary);

// Compares the pushes that workers reported as acknowledged with those that the shards accepted, and sets the summary's
// pushes_lost, pushes_lost_by_shard and pushes_duplicated. `reported` must be fetched before `shards`. Acknowledgements
// that a worker had not reported before it died are not counted.
void AddPushes(const v1::GetProgressResponse& reported, absl::Span<const v1::GetStatusResponse> shards,
               Summary& summary);

// Returns one line that names the shards that lost acknowledged pushes and how many; empty if none did.
std::string DescribeLosses(const Summary& summary);

}  // namespace ballast
