// SPDX-License-Identifier: Apache-2.0
// Consequences of a job's durability when one of its processes dies.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ballast/v1/limits.pb.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Checks the limits that tensor.proto states. `workers` is 0 if it is not known: limits that depend on it are then not
// checked. INVALID_ARGUMENT names the field, got and want.
absl::Status ValidatePolicy(const v1::ConsistencyPolicy& policy, uint32_t workers);

// Returns the largest staleness, in updates of a slice, that the policy allows while no worker is paused; nullopt if it
// has no bound. While a worker computes a gradient, each other worker makes at most 2 * steps_ahead + 1 updates: it was
// at most steps_ahead steps behind, and becomes at most steps_ahead + 1 steps ahead.
std::optional<uint64_t> StalenessBound(const v1::ConsistencyPolicy& policy, uint32_t workers);

// Returns whether the staleness of a table's gradients counts from the table's clock instead of the rows'.
bool CountsStalenessOfTables(const v1::ConsistencyPolicy& policy);

// Checks the limits that tensor.proto states, those of the schedule included, and that such a parameter may have the
// kind. INVALID_ARGUMENT names the field, got and want.
absl::Status ValidateOptimizer(const v1::Optimizer& optimizer, v1::ParameterKind parameter = v1::PARAMETER_KIND_TENSOR);
absl::Status ValidateInitializer(const v1::Initializer& initializer,
                                 v1::ParameterKind parameter = v1::PARAMETER_KIND_TENSOR);

// Time that the other members wait for a lost member to return: return_seconds, default 60 s.
absl::Duration ReturnTime(const v1::Durability& durability);

// Returns whether a lost server comes back with its state while the others wait for it: under wal, wal_sync and
// standby. Under checkpoint, all members go back to the last checkpoint together.
bool OutlivesAServer(const v1::Durability& durability);

// Returns whether the job takes checkpoints if its servers have a directory for them; the interval between
// checkpoints (default 60 s); and the number of checkpoints kept (default 2).
bool TakesCheckpoints(const v1::Durability& durability);
absl::Duration CheckpointInterval(const v1::Durability& durability);
uint32_t CheckpointsKept(const v1::Durability& durability);

}  // namespace ballast
