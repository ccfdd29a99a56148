// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/run/summary.h"

namespace ballast {

// Adds the sums of the shards' counts to a run's summary: staleness, waits, dropped gradients, bytes. Worker 0's mean
// staleness stays if the shards counted none.
void AddShards(absl::Span<const v1::GetStatusResponse> shards, Summary& summary);

// Compares the pushes that workers reported as acknowledged with those that the shards accepted, and sets the summary's
// pushes_lost, pushes_lost_by_shard and pushes_duplicated. `reported` must be fetched before `shards`. Acknowledgements
// that a worker had not reported before it died are not counted.
void AddPushes(const v1::GetProgressResponse& reported, absl::Span<const v1::GetStatusResponse> shards,
               Summary& summary);

// Returns one line that names the shards that lost acknowledged pushes and how many; empty if none did.
std::string DescribeLosses(const Summary& summary);

}  // namespace ballast
