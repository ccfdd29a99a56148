// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ballast/internal/v1/storage.pb.h"
#include "ballast/v1/tensor.pb.h"
#include "server/policies/policy_state.h"
#include "server/tensors/tensor_catalog.h"
#include "server/weights/slice_weights.h"

namespace ballast {

// What the job is, as the first declaration says.
struct JobConfig {
  std::string name;
  v1::ConsistencyPolicy policy;
  uint32_t workers = 0;
  v1::Durability durability;
};

// INVALID_ARGUMENT for a name, a policy or a number of workers that no job may have.
absl::Status ValidateJobConfig(const JobConfig& job);

// A shard at one moment, between pushes. What it holds of the weights is shared with the shard; updates leave it as it
// is, at the price of a copy.
struct ShardState {
  struct SliceEntry {
    SliceKey key;
    SliceWeights::State weights;
    PolicyState policy;
  };
  JobConfig job;
  std::vector<OwnedTensor> tensors;
  std::vector<SliceEntry> slices;
  // By rank.
  std::vector<internal::v1::WindowState> windows;
};

// What a job goes on with that resumes from a checkpoint.
struct Resumption {
  std::vector<ShardState::SliceEntry> slices;
  // By rank: from which incarnation on a worker is one of the resumed job's.
  std::vector<internal::v1::WindowState> windows;
};

}  // namespace ballast
