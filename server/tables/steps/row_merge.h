// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "server/memory/value_buffer.h"

namespace ballast {

// Gradients of rows from one message of a step, as a view.
struct RowAddend {
  uint32_t worker = 0;
  // Weight of the gradients; at least 1.
  uint32_t examples = 0;
  // Strictly ascending.
  absl::Span<const uint64_t> hashes;
  // [hashes, dim].
  absl::Span<const float> gradients;
  // Uses of each id; empty: 1.
  absl::Span<const uint16_t> uses = {};
};

// The gradients of a step's distinct rows: their mean is gradients * scale.
struct MergedRows {
  // Strictly ascending.
  std::vector<uint64_t> hashes;
  // [hashes, dim].
  ValueBuffer gradients;
  float scale = 1;
  // Uses of each id, of all workers; empty if they are not counted.
  std::vector<uint16_t> uses;
};

// Merges addends, which are in the order of the workers' ranks: for each row, the sum of examples * gradient in that
// order, divided by the examples of the step, whoever sent the row. A row has the bits that WeightedSum gives to a
// tensor of its length, of which a worker without the row pushes zeros. The bits depend on the addends' order only.
// `count_uses`: also adds the uses.
MergedRows MergeRows(absl::Span<const RowAddend> addends, uint32_t dim, uint64_t examples, bool count_uses = false);

}  // namespace ballast
