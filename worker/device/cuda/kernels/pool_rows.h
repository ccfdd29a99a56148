// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

// Launchers of CopyColumns, PoolRows and PoolRowsBackward. The numbers of bags and rows are in device memory. Tables
// hold floats; the other matrices may have any type.
namespace ballast {

// The first `columns` columns of y = those of x, for matrices that have more.
struct ColumnsCall {
  int64_t rows;
  int64_t columns;
  ConstElements x;
  int64_t x_columns;
  Elements y;
  int64_t y_columns;
};

cudaError_t LaunchCopyColumns(cudaStream_t stream, const ColumnsCall& call);

// Vectors of `dim` elements of bags, side by side in rows of a matrix of `columns` columns, from column `first` on.
struct BagVectors {
  uint32_t bags;
  // Bags of one row of the matrix.
  uint32_t fields;
  int64_t dim;
  int64_t columns;
  int64_t first;
  // End of each bag in the places. The backward pass reads it only for means; it may be null otherwise.
  const uint32_t* ends;
  bool mean;
};

// `places` are the rows of the table in each bag.
cudaError_t LaunchPoolRows(cudaStream_t stream, const float* table, const uint32_t* places, const BagVectors& bags,
                           Elements y);

// Places grouped by row of the table. Row r has the places from begin[r] to before begin[r + 1].
struct RowPlaces {
  int64_t rows;
  // rows + 1 indices into bag.
  const uint32_t* begin;
  // Bag of each place; those of one row in the order in which they are added.
  const uint32_t* bag;
};

cudaError_t LaunchPoolRowsBackward(cudaStream_t stream, ConstElements dy, const RowPlaces& places,
                                   const BagVectors& bags, float* dtable);

}  // namespace ballast
