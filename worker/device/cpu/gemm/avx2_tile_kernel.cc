// SPDX-License-Identifier: Apache-2.0
// Like avx512_tile_kernel.cc, but with 6 rows by 2 vectors of 8 floats: 12 of the 16 registers hold sums, 2 the row
// of right, 1 the number of left. One p takes 12 multiply-adds, 6 cycles, and 8 loads.
#include "worker/device/cpu/gemm/tile_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>

namespace ballast {
namespace {

constexpr int kFloats = 8;
constexpr int kVectorsOfTile = 2;
// Floats per cache line.
constexpr int64_t kLine = 16;

template <int kTileRows, int kVectors>
__attribute__((target("avx2,fma"))) void Multiply(const Tile& tile) {
  __m256 sums[kTileRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      sums[i][j] = tile.accumulate ? _mm256_loadu_ps(tile.c + i * tile.c_row + j * kFloats) : _mm256_setzero_ps();
    }
  }
  const float* left = tile.left;
  const float* right = tile.right;
  const float* fetch = tile.fetch;
  float* copy = tile.copy;
  for (int64_t done = 0; done < tile.depth; done += kLine) {
    if (fetch != nullptr) {
#pragma GCC unroll 8
      for (int i = 0; i < TileKernel::kRows; ++i) _mm_prefetch(fetch + i * tile.fetch_row, _MM_HINT_T1);
      fetch += kLine;
    }
    const int64_t end = std::min(done + kLine, tile.depth);
    for (int64_t p = done; p < end; ++p, left += tile.left_step, right += tile.right_step) {
      __m256 vectors[kVectors];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) vectors[j] = _mm256_loadu_ps(right + j * kFloats);
      if (copy != nullptr) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) _mm256_storeu_ps(copy + j * kFloats, vectors[j]);
        copy += kVectorsOfTile * kFloats;
      }
#pragma GCC unroll 8
      for (int i = 0; i < kTileRows; ++i) {
        const __m256 number = _mm256_set1_ps(left[i * tile.left_row]);
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) sums[i][j] = _mm256_fmadd_ps(number, vectors[j], sums[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      float* const c = tile.c + i * tile.c_row + j * kFloats;
      if (tile.stream) {
        _mm256_stream_ps(c, sums[i][j]);
      } else {
        _mm256_storeu_ps(c, sums[i][j]);
      }
    }
  }
}

#define BALLAST_ROW(r) \
  { Multiply<r, 1>, Multiply<r, 2>, nullptr, nullptr }
constexpr TileKernel kKernel = {
    "AVX2",
    kFloats,
    64,
    kVectorsOfTile,
    {BALLAST_ROW(1), BALLAST_ROW(2), BALLAST_ROW(3), BALLAST_ROW(4), BALLAST_ROW(5), BALLAST_ROW(6)}};
#undef BALLAST_ROW

}  // namespace

const TileKernel* Avx2TileKernel() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kKernel : nullptr;
}

}  // namespace ballast

#else

namespace ballast {
const TileKernel* Avx2TileKernel() { return nullptr; }
}  // namespace ballast

#endif
