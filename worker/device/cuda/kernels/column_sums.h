// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker/device/cuda/kernels/launch.h"
#include "worker/device/cuda/kernels/pack.h"

// Sums over the columns of a matrix [rows, columns], of N terms per element at once:
//
//   sums[n][j] = sum over i of term(i, j).value[n][0]
//
// `term` is a struct that a kernel can call. It gives the terms of the Term::kWidth columns from j on, so that it can
// load packs. Rows are summed in chunks, then the chunks, always in the same order and without atomics, so that
// results are bitwise repeatable. In each of the two levels, a result depends on at most
// (rows a chunk) / lanes + lanes / 8 + 6 additions, one after the other.
namespace ballast {

template <int N, int W>
struct Terms {
  float value[N][W];
};

inline constexpr int kColumnTile = 32;
inline constexpr int kRowLanes = kBlockThreads / kColumnTile;

// The threads of a block that loads W columns at once: `kLanes` for each W columns of the tile. Single columns have
// four times as many, because fewer bytes would be under way otherwise.
template <int W>
struct SumBlock {
  static constexpr int kLanes = kRowLanes * (W == 1 ? 4 : W);
  static constexpr int kThreads = kColumnTile / W * kLanes;
};

// Number of chunks: enough blocks to fill a GPU, each with enough rows to be worth its launch, and not too many for
// the block that adds them.
inline int64_t ColumnSumChunks(int64_t rows, int64_t columns) {
  constexpr int64_t kBlocks = 1024, kMaxChunks = 256, kRowsAChunk = 128;
  const int64_t tiles = CeilDivide(columns, kColumnTile);
  const int64_t by_blocks = kBlocks / tiles > 1 ? kBlocks / tiles : 1;
  const int64_t most = by_blocks < kMaxChunks ? by_blocks : kMaxChunks;
  const int64_t wanted = rows > 0 ? CeilDivide(rows, kRowsAChunk) : 1;
  return wanted < most ? wanted : most;
}

// Floats of scratch memory that LaunchColumnSums<N> needs.
template <int N>
int64_t ColumnSumScratch(int64_t rows, int64_t columns) {
  return N * ColumnSumChunks(rows, columns) * columns;
}

// The elements of a matrix as terms.
template <typename T, int W>
struct Values {
  static constexpr int kWidth = W;

  const T* x;
  int64_t columns;

  __device__ Terms<1, W> operator()(int64_t i, int64_t j) const {
    const Pack<T, W> pack = LoadPack<W>(x + i * columns + j);
    Terms<1, W> terms;
    for (int w = 0; w < W; ++w) terms.value[0][w] = static_cast<float>(pack.values[w]);
    return terms;
  }
};

// Block (tile, chunk) writes sums[n][chunk][j]. Threads with the same y, the lane, handle a row of the tile.
template <int N, typename Term>
__global__ void __launch_bounds__(SumBlock<Term::kWidth>::kThreads)
    ColumnSumsKernel(Term term, int64_t rows, int64_t columns, float* sums) {
  constexpr int kWidth = Term::kWidth, kLanes = SumBlock<kWidth>::kLanes;
  __shared__ float lanes[N][kLanes][kColumnTile];
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kColumnTile;
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const int64_t rows_a_chunk = (rows + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * rows_a_chunk;
  const int64_t end = begin + rows_a_chunk < rows ? begin + rows_a_chunk : rows;
  Terms<N, kWidth> sum = {};
  if (tile + first < columns) {
    for (int64_t i = begin + threadIdx.y; i < end; i += kLanes) {
      const Terms<N, kWidth> terms = term(i, tile + first);
      for (int n = 0; n < N; ++n) {
        for (int w = 0; w < kWidth; ++w) sum.value[n][w] += terms.value[n][w];
      }
    }
  }
  for (int n = 0; n < N; ++n) {
    for (int w = 0; w < kWidth; ++w) lanes[n][threadIdx.y][first + w] = sum.value[n][w];
  }
  __syncthreads();
  // From here on a thread has one column. The first 256 add every eighth lane, into a lane that no other thread reads.
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int column = thread % kColumnTile, own = thread / kColumnTile;
  for (int n = 0; n < N && own < kRowLanes; ++n) {
    for (int lane = own + kRowLanes; lane < kLanes; lane += kRowLanes) lanes[n][own][column] += lanes[n][lane][column];
  }
  __syncthreads();
  if (own != 0 || tile + column >= columns) return;
  for (int n = 0; n < N; ++n) {
    float total = 0.0f;
    for (int lane = 0; lane < kRowLanes; ++lane) total += lanes[n][lane][column];
    sums[(static_cast<int64_t>(n) * gridDim.y + blockIdx.y) * columns + tile + column] = total;
  }
}

// The sums of the chunks as terms: row i is chunk i.
template <int N, int W>
struct PartialSums {
  static constexpr int kWidth = W;

  const float* sums;
  int64_t chunks;
  int64_t columns;

  __device__ Terms<N, W> operator()(int64_t i, int64_t j) const {
    Terms<N, W> terms;
    for (int n = 0; n < N; ++n) {
      const Pack<float, W> pack = LoadPack<W>(sums + (n * chunks + i) * columns + j);
      for (int w = 0; w < W; ++w) terms.value[n][w] = pack.values[w];
    }
    return terms;
  }
};

template <int N, typename Term>
cudaError_t LaunchColumnSumsLevel(cudaStream_t stream, const Term& term, int64_t rows, int64_t columns, int64_t chunks,
                                  float* sums) {
  const dim3 grid(static_cast<unsigned>(CeilDivide(columns, kColumnTile)), static_cast<unsigned>(chunks));
  const dim3 block(kColumnTile / Term::kWidth, SumBlock<Term::kWidth>::kLanes);
  return Launch(stream, grid, block, ColumnSumsKernel<N, Term>, term, rows, columns, sums);
}

// `sums` is [N, columns]; `scratch` has ColumnSumScratch floats. Without rows the sums are 0.
template <int N, typename Term>
cudaError_t LaunchColumnSums(cudaStream_t stream, const Term& term, int64_t rows, int64_t columns, float* scratch,
                             float* sums) {
  if (columns == 0) return cudaSuccess;
  const int64_t chunks = ColumnSumChunks(rows, columns);
  if (chunks == 1) return LaunchColumnSumsLevel<N>(stream, term, rows, columns, 1, sums);
  const cudaError_t error = LaunchColumnSumsLevel<N>(stream, term, rows, columns, chunks, scratch);
  if (error != cudaSuccess) return error;
  return WithWidth<float>(columns, {scratch}, [&](auto width) {
    const PartialSums<N, decltype(width)::value> partial = {scratch, chunks, columns};
    return LaunchColumnSumsLevel<N>(stream, partial, chunks, columns, 1, sums);
  });
}

}  // namespace ballast
