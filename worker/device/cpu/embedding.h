// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "worker/device/embedding_operations.h"

// The CPU device's operations on vectors of embeddings, with the contracts of EmbeddingOperations. All run on the
// calling thread, and give the same bits with every instruction set.
namespace ballast {

// Vectors of the bags of one table inside the rows of a matrix: columns [first, first + fields * dim) of `columns`.
struct PooledColumns {
  int64_t examples = 0;
  int64_t columns = 0;
  int64_t first = 0;
  int64_t dim = 0;
};

void CopyColumns(int64_t rows, int64_t columns, const float* x, int64_t x_columns, float* y, int64_t y_columns);

void PoolRows(const float* table, const RowBags& bags, const PooledColumns& in_y, float* y);
void PoolRowsBackward(const float* dy, const RowBags& bags, const PooledColumns& in_dy, int64_t rows, float* dtable);

// Sizes of an interaction: rows of `vectors` vectors of `dim` elements.
struct InteractionShape {
  int64_t rows = 0;
  int64_t vectors = 0;
  int64_t dim = 0;

  int64_t pairs() const { return vectors * (vectors - 1) / 2; }
};

void DotInteraction(const InteractionShape& shape, const float* x, float* y);
void DotInteractionBackward(const InteractionShape& shape, const float* x, const float* dy, float* dx);

}  // namespace ballast
