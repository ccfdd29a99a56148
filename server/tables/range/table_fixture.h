// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/tables/row_hash.h"
#include "server/tables/range/row_batch.h"

namespace ballast {

// All weights of a row are the hash's lowest three bits, so tests can write them down.
class LowBitsInitializer : public InitialRows {
 public:
  void Fill(uint64_t hash, absl::Span<float> weights) const override {
    std::fill(weights.begin(), weights.end(), static_cast<float>(hash & 7));
  }
};

// Plain gradient descent. The only slot, if any, counts the updates.
class CountingSgd : public RowOptimizer {
 public:
  int SlotFloats(int) const override { return 1; }

  void Apply(int dim, float gradient_scale, absl::Span<const RowUpdate> rows) const override {
    for (const RowUpdate& update : rows) {
      for (int i = 0; i < dim; ++i) update.row[i] -= update.learning_rate * gradient_scale * update.gradient[i];
      update.row[dim] += 1;
    }
  }

  float LearningRate(uint64_t, std::optional<double>) const override { return 1; }
};

// Ascending hashes of rows [0, rows) of table 1.
inline std::vector<uint64_t> HashesOfRows(uint64_t rows) {
  std::vector<uint64_t> hashes;
  for (uint64_t id = 0; id < rows; ++id) hashes.push_back(RowHash(id, 1));
  std::sort(hashes.begin(), hashes.end());
  return hashes;
}

}  // namespace ballast
