// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"

namespace ballast {

// Returns a server's metrics for Prometheus, with those of the process. `job`: the coordinator's view of the job; null
// on servers that run no coordinator. Labels are few: a worker's rank where a figure is of one worker, for at most
// 1,000 workers, and never a tensor.
std::string ServerMetrics(const v1::GetStatusResponse& shard, const v1::GetProgressResponse* job);

}  // namespace ballast
