// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/elements.h"

// Launchers of GatherRows and ScatterAddRows. Row indices are in device memory. The table holds floats; the other
// matrices may have any type.
namespace ballast {

// Row i of y = row rows[i] of the table, for i < count.
cudaError_t LaunchGatherRows(cudaStream_t stream, const float* table, int64_t columns, const int64_t* rows,
                             int64_t count, Elements y);

// Entries grouped by target row. Group g has the entries from begin[g] to before begin[g + 1].
struct RowGroups {
  // `groups` distinct rows of the table.
  const int64_t* target;
  // groups + 1 indices into source.
  const int64_t* begin;
  // Rows of dy; those of one group in the order in which they are added.
  const int64_t* source;
  int64_t groups;
};

cudaError_t LaunchScatterAddRows(cudaStream_t stream, ConstElements dy, int64_t columns, const RowGroups& groups,
                                 float* table);

}  // namespace ballast
