// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/pool_rows.h"

// With the bag (i, f) of field f of example i, and s = 1 for sums or 1 / the bag's number of places for means:
//
//   forward   y[i][first + f * dim + d] = s * sum over the places r of the bag of table[r][d]
//   backward  dtable[r][d] = sum over the places of the bags that are r of s * dy[i][first + f * dim + d]
//
// One thread computes one result and adds its terms in order, without atomics, so that results are bitwise repeatable.
// Neighboring threads have neighboring elements of a vector.
namespace ballast {
namespace {

template <typename T>
__global__ void CopyColumnsKernel(ColumnsCall call) {
  for (int64_t e = FirstElement(); e < call.rows * call.columns; e += ElementStride()) {
    const int64_t i = e / call.columns, j = e % call.columns;
    call.y.As<T>()[i * call.y_columns + j] = call.x.As<T>()[i * call.x_columns + j];
  }
}

__device__ uint32_t BeginOf(const BagVectors& bags, uint32_t bag) { return bag == 0 ? 0 : bags.ends[bag - 1]; }

// The factor of the terms of a bag that is not empty.
__device__ float ShareOf(const BagVectors& bags, uint32_t bag) {
  return bags.mean ? 1.0f / static_cast<float>(bags.ends[bag] - BeginOf(bags, bag)) : 1.0f;
}

// Index of a bag's first element in the matrix. Divides in 32 bits, which takes a GPU a fraction of the time.
__device__ int64_t VectorOf(const BagVectors& bags, uint32_t bag) {
  const uint32_t example = bag / bags.fields;
  return example * bags.columns + bags.first + (bag - example * bags.fields) * bags.dim;
}

template <typename T>
__global__ void PoolRowsKernel(const float* table, const uint32_t* places, BagVectors bags, T* y) {
  const int64_t elements = bags.bags * bags.dim;
  for (int64_t e = FirstElement(); e < elements; e += ElementStride()) {
    const uint32_t bag = static_cast<uint32_t>(e / bags.dim);
    const int64_t d = e - bag * bags.dim;
    const uint32_t begin = BeginOf(bags, bag), end = bags.ends[bag];
    float sum = 0.0f;
    for (uint32_t k = begin; k < end; ++k) sum += table[places[k] * bags.dim + d];
    if (begin != end) sum *= ShareOf(bags, bag);
    y[VectorOf(bags, bag) + d] = static_cast<T>(sum);
  }
}

template <typename T>
__global__ void PoolRowsBackwardKernel(const T* dy, RowPlaces places, BagVectors bags, float* dtable) {
  for (int64_t e = FirstElement(); e < places.rows * bags.dim; e += ElementStride()) {
    const int64_t row = e / bags.dim, d = e % bags.dim;
    float sum = 0.0f;
    for (uint32_t k = places.begin[row]; k < places.begin[row + 1]; ++k) {
      const uint32_t bag = places.bag[k];
      sum += static_cast<float>(dy[VectorOf(bags, bag) + d]) * ShareOf(bags, bag);
    }
    dtable[e] = sum;
  }
}

}  // namespace

cudaError_t LaunchCopyColumns(cudaStream_t stream, const ColumnsCall& call) {
  const int64_t elements = call.rows * call.columns;
  if (elements == 0) return cudaSuccess;
  return WithType(call.y.type, [&](auto type) {
    return Launch(stream, BlocksFor(elements), kBlockThreads, CopyColumnsKernel<decltype(type)>, call);
  });
}

cudaError_t LaunchPoolRows(cudaStream_t stream, const float* table, const uint32_t* places, const BagVectors& bags,
                           Elements y) {
  const int64_t elements = bags.bags * bags.dim;
  if (elements == 0) return cudaSuccess;
  return WithType(y.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, BlocksFor(elements), kBlockThreads, PoolRowsKernel<T>, table, places, bags, y.As<T>());
  });
}

cudaError_t LaunchPoolRowsBackward(cudaStream_t stream, ConstElements dy, const RowPlaces& places,
                                   const BagVectors& bags, float* dtable) {
  const int64_t elements = places.rows * bags.dim;
  if (elements == 0) return cudaSuccess;
  return WithType(dy.type, [&](auto type) {
    using T = decltype(type);
    return Launch(stream, BlocksFor(elements), kBlockThreads, PoolRowsBackwardKernel<T>, dy.As<T>(), places, bags,
                  dtable);
  });
}

}  // namespace ballast
