// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "absl/base/attributes.h"
#include "worker/device/cpu/gemm/tile_kernel.h"

namespace ballast {

// Computes a tile. The option -ffp-contract=fast fuses the multiplication with the addition. A Set of instructions has
//   Vector, kFloats   a vector, and its number of floats;
//   kVectors          vectors in a row of a whole tile;
//   Run(loop)         calls loop(), compiled for the set.
template <typename Set, TileLayout kLayout, int kTileRows, int kVectors>
struct TileLoop {
  // Floats per cache line.
  static constexpr int64_t kLine = 16;
  static constexpr int kFloats = Set::kFloats;
  static constexpr int kWidth = Set::kVectors * kFloats;
  static constexpr bool kInterleaved = kLayout == TileLayout::kInterleavedTimesPanel;
  using Vector = typename Set::Vector;
  using Sums = Vector[kTileRows][kVectors];

  // A reference: a copy of the fields that the caller has just written would wait for them.
  const Tile& tile;

  // The numbers of left and right that are to come.
  struct Rest {
    // Each of left's rows if they are in place; otherwise only the first.
    const float* left[kTileRows];
    const float* right;
  };

  // Adds kSteps products to each sum.
  template <int kSteps>
  ABSL_ATTRIBUTE_ALWAYS_INLINE void Add(Rest& rest, Sums& sums) const {
#pragma GCC unroll 8
    for (int p = 0; p < kSteps; ++p) {
      Vector vectors[kVectors];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        std::memcpy(&vectors[j], rest.right + p * kWidth + j * kFloats, sizeof(Vector));
      }
#pragma GCC unroll 8
      for (int i = 0; i < kTileRows; ++i) {
        const float number = kInterleaved ? rest.left[0][p * TileKernel::kRows + i] : rest.left[i][p];
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) sums[i][j] += number * vectors[j];
      }
    }
    rest.right += kSteps * kWidth;
    if constexpr (kInterleaved) {
      rest.left[0] += kSteps * TileKernel::kRows;
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < kTileRows; ++i) rest.left[i] += kSteps;
    }
  }

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    constexpr int kSteps = 4;
    Sums sums;
    float* const c = tile.c;
    const int64_t c_row = tile.c_row;
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) sums[i][j] = Vector{};
    }
    if (tile.accumulate) {
#pragma GCC unroll 8
      for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) std::memcpy(&sums[i][j], c + i * c_row + j * kFloats, sizeof(Vector));
      }
    }
    Rest rest = {{}, tile.right};
#pragma GCC unroll 8
    for (int i = 0; i < (kInterleaved ? 1 : kTileRows); ++i) rest.left[i] = tile.left + i * tile.left_row;
    const int64_t depth = tile.depth, fetch_row = tile.fetch_row;
    const float* fetch = tile.fetch;
    const int fetch_rows = tile.fetch_rows;
    int64_t done = 0;
    for (; done + kLine <= depth; done += kLine) {
      if (fetch_rows > 0) {
#pragma GCC unroll 8
        for (int i = 0; i < TileKernel::kFewRows; ++i) __builtin_prefetch(fetch + i * fetch_row, 0, 2);
        if (fetch_rows > TileKernel::kFewRows) {
#pragma GCC unroll 8
          for (int i = TileKernel::kFewRows; i < TileKernel::kRows; ++i) {
            __builtin_prefetch(fetch + i * fetch_row, 0, 2);
          }
        }
        fetch += kLine;
      }
      for (int p = 0; p < kLine; p += kSteps) Add<kSteps>(rest, sums);
    }
    for (; done < depth; ++done) Add<1>(rest, sums);
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) std::memcpy(c + i * c_row + j * kFloats, &sums[i][j], sizeof(Vector));
    }
  }
};

// Null for more vectors than a tile has.
template <typename Set, TileLayout kLayout, int kTileRows, int kVectors>
constexpr auto Multiplier() -> void (*)(const Tile&) {
  if constexpr (kVectors <= Set::kVectors) {
    return [](const Tile& tile) { Set::Run(TileLoop<Set, kLayout, kTileRows, kVectors>{tile}); };
  }
  return nullptr;
}

template <typename Set, TileLayout kLayout, int kTileRows>
constexpr std::array<void (*)(const Tile&), TileKernel::kMostVectors> MultipliersOfRows() {
  return {Multiplier<Set, kLayout, kTileRows, 1>(), Multiplier<Set, kLayout, kTileRows, 2>(),
          Multiplier<Set, kLayout, kTileRows, 3>(), Multiplier<Set, kLayout, kTileRows, 4>()};
}

template <typename Set, TileLayout kLayout>
constexpr TileKernel::Functions Multipliers() {
  return {MultipliersOfRows<Set, kLayout, 1>(), MultipliersOfRows<Set, kLayout, 2>(),
          MultipliersOfRows<Set, kLayout, 3>(), MultipliersOfRows<Set, kLayout, 4>(),
          MultipliersOfRows<Set, kLayout, 5>(), MultipliersOfRows<Set, kLayout, 6>()};
}

template <typename Set>
constexpr TileKernel KernelOf(const char* name, int most_batch) {
  return {name,
          Set::kFloats,
          most_batch,
          Set::kVectors,
          {Multipliers<Set, TileLayout::kRowsTimesPanel>(), Multipliers<Set, TileLayout::kInterleavedTimesPanel>()}};
}

}  // namespace ballast
