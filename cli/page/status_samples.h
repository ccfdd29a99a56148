// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "cli/page/metric_samples.h"

namespace ballast {

// Returns the figures of a server, as its /metrics page would have them: for a server that is known only by its gRPC
// address.
std::vector<MetricSample> SamplesOf(const v1::GetStatusResponse& shard);
// The figures of the job; and those of all its workers together that the coordinator knows.
std::vector<MetricSample> SamplesOf(const v1::GetProgressResponse& job);

}  // namespace ballast
