// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/column_sums.h"
#include "worker/device/cuda/kernels/sum_rows.h"

namespace ballast {

int64_t SumRowsScratch(int64_t rows, int64_t columns) { return ColumnSumScratch<1>(rows, columns); }

cudaError_t LaunchSumRows(cudaStream_t stream, ConstElements x, int64_t rows, int64_t columns, float* scratch,
                          float* sums) {
  return WithType(x.type, [&](auto type) {
    using T = decltype(type);
    return WithWidth<T>(columns, {x.As<T>()}, [&](auto width) {
      const Values<T, decltype(width)::value> values = {x.As<T>(), columns};
      return LaunchColumnSums<1>(stream, values, rows, columns, scratch, sums);
    });
  });
}

}  // namespace ballast
