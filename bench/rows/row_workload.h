// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "bench/rows/row_store.h"
#include "server/weights/optimizers/row_optimizer.h"

namespace ballast {

// Rows that begin with zeros. Thread safety: immutable.
class ZeroRows : public InitialRows {
 public:
  void Fill(uint64_t hash, absl::Span<float> weights) const override;
};

// Owns what calls to a store need: row-wise Adagrad, gradients, and memory for values. Calls return their seconds of
// CPU time. Thread safety: confined to one thread.
class RowWorkload {
 public:
  // The batches have at most `most_rows` rows of `dim` weights.
  RowWorkload(int dim, size_t most_rows);

  // `hashes`: ascending.
  double Pull(RowStore& store, absl::Span<const uint64_t> hashes);
  double Push(RowStore& store, absl::Span<const uint64_t> hashes);

  // Creates rows 0 to `rows` - 1, with pushes of at most `most_rows` rows, and returns the time of each push.
  std::vector<double> Fill(RowStore& store, uint64_t rows);

  // The values of the last pull, [its rows, dim].
  absl::Span<const float> values() const { return values_; }

 private:
  const size_t most_rows_;
  const std::unique_ptr<RowOptimizer> optimizer_;
  const ZeroRows initial_;
  const std::vector<float> gradients_;
  std::vector<float> values_;
  std::vector<uint32_t> versions_;
  uint32_t step_ = 0;
};

}  // namespace ballast
