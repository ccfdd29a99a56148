// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/column_sums.h"
#include "worker/device/cuda/kernels/sum_rows.h"

namespace ballast {
namespace {

template <typename T>
struct Element {
  const T* x;
  int64_t columns;

  __device__ Terms<1> operator()(int64_t i, int64_t j) const { return {{static_cast<float>(x[i * columns + j])}}; }
};

}  // namespace

int64_t SumRowsScratch(int64_t rows, int64_t columns) { return ColumnSumScratch<1>(rows, columns); }

cudaError_t LaunchSumRows(cudaStream_t stream, ConstElements x, int64_t rows, int64_t columns, float* scratch,
                          float* sums) {
  return WithType(x.type, [&](auto type) {
    using T = decltype(type);
    return LaunchColumnSums<1>(stream, Element<T>{x.As<T>(), columns}, rows, columns, scratch, sums);
  });
}

}  // namespace ballast
