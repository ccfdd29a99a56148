// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "worker/device/device_types.h"

namespace ballast {

// Bags of rows of a table, one for each example and field, in host memory. Does not own it.
struct RowBags {
  // End of each bag in `places`, [examples, fields], row-major. A bag begins at the end of the one before, and may be
  // empty.
  absl::Span<const uint32_t> ends;
  // Row of the table at each place of the bags, 0 to table.rows - 1. Rows may be repeated.
  absl::Span<const uint32_t> places;
  int64_t fields = 0;
  // The vector of a bag is the mean of its rows instead of their sum.
  bool mean = false;
};

// Returns whether these are the bags of that many examples, and all places are rows of a table with `rows` rows.
inline bool Fits(const RowBags& bags, int64_t examples, int64_t rows) {
  if (bags.fields < 0 || static_cast<int64_t>(bags.ends.size()) != examples * bags.fields) return false;
  if (!std::is_sorted(bags.ends.begin(), bags.ends.end())) return false;
  if (bags.places.size() != (bags.ends.empty() ? 0 : bags.ends.back())) return false;
  // Without a branch in the loop, so that it vectorizes.
  uint32_t largest = 0;
  for (const uint32_t row : bags.places) largest = std::max(largest, row);
  return bags.places.empty() || largest < rows;
}

// A device's operations on vectors of embeddings. Tables and their gradients are floats; x, y, dx and dy are
// activations with a row for each example. The caller may reuse the memory of RowBags on return. Results do not depend
// on the number of threads. The contract of class Device applies.
class EmbeddingOperations {
 public:
  virtual ~EmbeddingOperations() = default;

  // Columns [0, columns) of y = those of x. Both have at least that many columns and the same number of rows.
  virtual void CopyColumns(int64_t columns, Matrix x, Matrix y) = 0;

  // y[i][first + f * dim + d] = the sum over the places r of bag (i, f) of table[r][d], in their order, or their mean;
  // 0 for an empty bag. The table has dim columns; the other columns of y are unchanged.
  virtual void PoolRows(Matrix table, const RowBags& bags, int64_t first, Matrix y) = 0;
  // dtable[r][d] = the sum over the places of the bags that are r, in their order, of dy[i][first + f * dim + d], which
  // for means is divided by the bag's number of places. Writes every row of dtable: 0 for one without a place.
  virtual void PoolRowsBackward(Matrix dy, const RowBags& bags, int64_t first, Matrix dtable) = 0;

  // A row of x is n vectors of `dim` elements. A row of y is the first vector, then the dot products of the pairs (1,
  // 0), (2, 0), (2, 1), (3, 0) ... of vectors: dim + n (n - 1) / 2 elements.
  virtual void DotInteraction(int64_t dim, Matrix x, Matrix y) = 0;
  // dx[v] = the sum over the pairs with v of their dy times the pair's other vector; for the first vector, plus dy's
  // first `dim` elements. dx does not overlap x or dy.
  virtual void DotInteractionBackward(int64_t dim, Matrix x, Matrix dy, Matrix dx) = 0;
};

}  // namespace ballast
