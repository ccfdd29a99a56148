// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ballast/internal/v1/storage.pb.h"
#include "ballast/v1/tensor.pb.h"
#include "server/policies/policy_state.h"
#include "server/tables/table.h"
#include "server/tensors/tensor_catalog.h"
#include "server/weights/slice_weights.h"

namespace ballast {

// The configuration of a job, taken from its first declaration.
struct JobConfig {
  std::string name;
  v1::ConsistencyPolicy policy;
  uint32_t workers = 0;
  v1::Durability durability;
};

// INVALID_ARGUMENT for an invalid name, policy or number of workers.
absl::Status ValidateJobConfig(const JobConfig& job);

// State of a shard between two pushes. It shares its weights with the shard; an update copies them first, so the
// state never changes. Rows can be taken out of it once.
struct ShardState {
  struct SliceEntry {
    SliceKey key;
    SliceWeights::State weights;
    PolicyState policy;
  };
  // The shard must outlive it.
  struct TableEntry {
    uint32_t id = 0;
    Table::State state;
    std::shared_ptr<TableCapture> rows;
  };
  JobConfig job;
  std::vector<OwnedTensor> tensors;
  std::vector<OwnedTable> tables;
  std::vector<SliceEntry> slices;
  std::vector<TableEntry> table_entries;
  // The checkpoint since whose capture all rows of the tables have changed; 0: the tables have all of their rows.
  uint64_t since_checkpoint = 0;
  // By rank.
  std::vector<internal::v1::WindowState> windows;
};

// The state from which a job resumes after a checkpoint.
struct Resumption {
  std::vector<ShardState::SliceEntry> slices;
  // By rank: the first incarnation of each worker that belongs to the resumed job.
  std::vector<internal::v1::WindowState> windows;
};

}  // namespace ballast
