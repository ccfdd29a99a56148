// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/run/summary.h"

namespace ballast {

// Adds what the shards counted, all together, to a run's summary: staleness, waits, dropped gradients, bytes.
// Worker 0's staleness stays where they counted none.
void AddShards(absl::Span<const v1::GetStatusResponse> shards, Summary& summary);

// Holds what workers reported as acknowledged, before the shards were asked, against what these accepted: the summary's
// pushes_lost, in all and by shard, and pushes_duplicated. What a worker had not reported when it died is not known.
void AddPushes(const v1::GetProgressResponse& reported, absl::Span<const v1::GetStatusResponse> shards,
               Summary& summary);

// Says in a line which shards have lost acknowledged pushes, and how many; empty where none has.
std::string DescribeLosses(const Summary& summary);

}  // namespace ballast
