// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/launch.h"

// Sums over the columns of a matrix [rows, columns], of N terms per element at once:
//
//   sums[n][j] = sum over i of term(i, j).value[n]
//
// `term` is a struct that a kernel can call. Rows are summed in chunks, then the chunks, always in the same order and
// without atomics, so that results are bitwise repeatable.
namespace ballast {

template <int N>
struct Terms {
  float value[N];
};

inline constexpr int kColumnTile = 32;
inline constexpr int kRowLanes = kBlockThreads / kColumnTile;

// Number of chunks: enough blocks to fill a GPU, each with enough rows to be worth its launch.
inline int64_t ColumnSumChunks(int64_t rows, int64_t columns) {
  constexpr int64_t kBlocks = 1024, kRowsAChunk = 128;
  const int64_t tiles = CeilDivide(columns, kColumnTile);
  const int64_t most = kBlocks / tiles > 1 ? kBlocks / tiles : 1;
  const int64_t wanted = rows > 0 ? CeilDivide(rows, kRowsAChunk) : 1;
  return wanted < most ? wanted : most;
}

// Floats of scratch memory that LaunchColumnSums<N> needs.
template <int N>
int64_t ColumnSumScratch(int64_t rows, int64_t columns) {
  return N * ColumnSumChunks(rows, columns) * columns;
}

// Block (tile, chunk) writes sums[n][chunk][j].
template <int N, typename Term>
__global__ void ColumnSumsKernel(Term term, int64_t rows, int64_t columns, float* sums) {
  __shared__ float lanes[N][kRowLanes][kColumnTile];
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kColumnTile + threadIdx.x;
  const int64_t rows_a_chunk = (rows + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * rows_a_chunk;
  const int64_t end = begin + rows_a_chunk < rows ? begin + rows_a_chunk : rows;
  Terms<N> sum = {};
  if (j < columns) {
    for (int64_t i = begin + threadIdx.y; i < end; i += kRowLanes) {
      const Terms<N> terms = term(i, j);
      for (int n = 0; n < N; ++n) sum.value[n] += terms.value[n];
    }
  }
  for (int n = 0; n < N; ++n) lanes[n][threadIdx.y][threadIdx.x] = sum.value[n];
  __syncthreads();
  if (threadIdx.y != 0 || j >= columns) return;
  for (int n = 0; n < N; ++n) {
    float total = 0.0f;
    for (int lane = 0; lane < kRowLanes; ++lane) total += lanes[n][lane][threadIdx.x];
    sums[(static_cast<int64_t>(n) * gridDim.y + blockIdx.y) * columns + j] = total;
  }
}

// The sums of the chunks as terms: row i is chunk i.
template <int N>
struct PartialSums {
  const float* sums;
  int64_t chunks;
  int64_t columns;

  __device__ Terms<N> operator()(int64_t i, int64_t j) const {
    Terms<N> terms;
    for (int n = 0; n < N; ++n) terms.value[n] = sums[(n * chunks + i) * columns + j];
    return terms;
  }
};

// `sums` is [N, columns]; `scratch` has ColumnSumScratch floats. Without rows the sums are 0.
template <int N, typename Term>
cudaError_t LaunchColumnSums(cudaStream_t stream, const Term& term, int64_t rows, int64_t columns, float* scratch,
                             float* sums) {
  if (columns == 0) return cudaSuccess;
  const dim3 block(kColumnTile, kRowLanes);
  const unsigned tiles = static_cast<unsigned>(CeilDivide(columns, kColumnTile));
  const int64_t chunks = ColumnSumChunks(rows, columns);
  float* const first = chunks == 1 ? sums : scratch;
  const cudaError_t error = Launch(stream, dim3(tiles, static_cast<unsigned>(chunks)), block, ColumnSumsKernel<N, Term>,
                                   term, rows, columns, first);
  if (error != cudaSuccess || chunks == 1) return error;
  const PartialSums<N> partial = {scratch, chunks, columns};
  return Launch(stream, dim3(tiles), block, ColumnSumsKernel<N, PartialSums<N>>, partial, chunks, columns, sums);
}

}  // namespace ballast
