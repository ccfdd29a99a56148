// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/column_sums.h"
#include "worker/device/cuda/kernels/sum_rows.h"

namespace ballast {
namespace {

struct Element {
  const float* x;
  int64_t columns;

  __device__ Terms<1> operator()(int64_t i, int64_t j) const { return {{x[i * columns + j]}}; }
};

}  // namespace

int64_t SumRowsScratch(int64_t rows, int64_t columns) { return ColumnSumScratch<1>(rows, columns); }

cudaError_t LaunchSumRows(cudaStream_t stream, const float* x, int64_t rows, int64_t columns, float* scratch,
                          float* sums) {
  return LaunchColumnSums<1>(stream, Element{x, columns}, rows, columns, scratch, sums);
}

}  // namespace ballast
