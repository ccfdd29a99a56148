// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"

namespace ballast {

// The coordinator's view of a job.
struct JobView {
  v1::GetProgressResponse described;
  // Zero if the job takes no checkpoints by itself.
  absl::Duration checkpoint_interval;
  // Largest staleness that the policy allows; see StalenessBound.
  std::optional<uint64_t> staleness_bound;
};

// Returns a server's metrics for Prometheus, with those of the process. `job`: null on servers that run no coordinator.
// Labels are few: the rank of a worker or shard if a figure is of one, for at most 1,000 of each, and never a tensor.
std::string ServerMetrics(const v1::GetStatusResponse& shard, const JobView* job);

}  // namespace ballast
