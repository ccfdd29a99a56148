// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

// Launchers of GatherRows and ScatterAddRows. Row numbers lie in device memory. The table has floats, the others
// may be of any type.
namespace ballast {

// Row i of y = row rows[i] of the table, for i < count.
cudaError_t LaunchGatherRows(cudaStream_t stream, const float* table, int64_t columns, const int64_t* rows,
                             int64_t count, Elements y);

// What goes to which row of a table, sorted by row. Group g are the entries from begin[g] to before begin[g + 1].
struct RowGroups {
  // `groups` different rows of the table.
  const int64_t* target;
  // groups + 1 numbers.
  const int64_t* begin;
  // Rows of dy, of each group in the order in which they are to be added.
  const int64_t* source;
  int64_t groups;
};

cudaError_t LaunchScatterAddRows(cudaStream_t stream, ConstElements dy, int64_t columns, const RowGroups& groups,
                                 float* table);

}  // namespace ballast
