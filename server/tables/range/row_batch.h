// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "server/tables/range/row_rules.h"
#include "server/weights/optimizers/row_optimizer.h"

namespace ballast {

// Computes the initial weights of rows. Thread safety: immutable.
class InitialRows {
 public:
  virtual ~InitialRows() = default;

  // Writes the initial weights, one for each element of `weights`, of the row with that hash. Depends on nothing else.
  virtual void Fill(uint64_t hash, absl::Span<float> weights) const = 0;
};

// A pull of rows: what it asks for and where the values go.
struct BatchPull {
  // Strictly ascending, within the table's ranges.
  absl::Span<const uint64_t> hashes;
  // Values of missing rows; nullptr: zeros.
  const InitialRows* missing = nullptr;
  // Receives `dim` weights for each hash, in their order.
  float* values = nullptr;
  // Receives the number of updates of each row, 0 for a missing one; nullptr if not wanted.
  uint32_t* versions = nullptr;
  RowTime time = {};
};

// A push of gradients of rows.
struct BatchPush {
  // Strictly ascending, within the table's ranges.
  absl::Span<const uint64_t> hashes;
  // `dim` floats for each hash, in their order.
  const float* gradients = nullptr;
  // Version of each row when it was pulled; empty: staleness is not counted.
  absl::Span<const uint32_t> pulled_versions;
  // The gradients are multiplied by it.
  float gradient_scale = 1;
  // After schedule.
  float learning_rate = 0;
  // Divides the learning rate by 1 + the staleness of the row.
  bool scale_by_staleness = false;
  // The updated rows' last step, and which rows have expired.
  RowTime time = {};
  const RowOptimizer* optimizer = nullptr;
  const InitialRows* initializer = nullptr;
  // The place of each range with rows of the push in the order of the range's changes, from ReserveOrder; empty if
  // pushes are not ordered.
  absl::Span<const uint64_t> places = {};
  // Uses of each id; empty: 1.
  absl::Span<const uint16_t> uses = {};
  // Seed of the draws by which ids are admitted.
  uint64_t draw = 0;
};

// Result of a push. Each row is either applied, not admitted or refused.
struct BatchOutcome {
  uint64_t applied = 0;
  // Applied to rows that the push created.
  uint64_t created = 0;
  // Applied, but pulled at a version that the row has not reached, because it was evicted since.
  uint64_t orphaned = 0;
  // Not applied, because the row is missing and there is no memory for it.
  uint64_t refused = 0;
  // Not applied, because the id is not admitted yet.
  uint64_t not_admitted = 0;
  // Rows that were evicted meanwhile, and created ones that had been evicted before.
  uint64_t expired = 0;
  uint64_t over_budget = 0;
  uint64_t small_norm = 0;
  uint64_t returned = 0;
  // Growth of the memory that is not in the arena.
  int64_t side_bytes = 0;
  // Largest staleness of an applied gradient: updates of its row since it was pulled. Orphaned ones do not count.
  uint32_t max_staleness = 0;

  uint64_t evicted() const { return expired + over_budget + small_norm; }
  void Add(const BatchOutcome& other);
};

}  // namespace ballast
