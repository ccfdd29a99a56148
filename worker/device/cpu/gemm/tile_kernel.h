// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "common/simd/instruction_set.h"

namespace ballast {

// Where a tile's left side is; the right one is a panel. Each layout has its own kernels, which take a third fewer
// instructions because the compiler knows the distances.
enum class TileLayout {
  // Left's rows are in place.
  kRowsTimesPanel,
  // Left's rows are interleaved: number p of row i is at left[p * TileKernel::kRows + i].
  kInterleavedTimesPanel,
};
inline constexpr int kTileLayouts = 2;

// One tile of a product, c = left right (+ c): left is [rows, depth] and read one number at a time, right is [depth,
// columns] and read one vector at a time. Right is a panel: its rows are one after the other, TileKernel::width()
// apart.
struct Tile {
  const float* left = nullptr;
  // Distance of rows that are in place.
  int64_t left_row = 0;
  const float* right = nullptr;
  int64_t depth = 0;
  // Row i of c begins at c[i * c_row].
  float* c = nullptr;
  int64_t c_row = 0;
  // Adds the products to the contents of c.
  bool accumulate = false;
  // Data that later tiles read: `depth` numbers in each of fetch_rows rows, fetch_row apart, are gradually prefetched
  // into the L2 cache while this tile is computed. There are no such rows, TileKernel::kFewRows or TileKernel::kRows.
  const float* fetch = nullptr;
  int64_t fetch_row = 0;
  int fetch_rows = 0;
};

// An instruction set's kernels for tiles. Each element of c is one chain of fused multiply-adds in the order of p, so
// that every kernel, every blocking of the depth and every split over threads give the same bits.
struct TileKernel {
  static constexpr int kRows = 6;
  static constexpr int kFewRows = 2;
  static constexpr int kMostVectors = 4;
  static constexpr int kMostWidth = 64;
  using Functions = std::array<std::array<void (*)(const Tile&), kMostVectors>, kRows>;

  const char* name;
  int vector_floats;
  // Largest batch at which SmallBatchGemm was measured to be faster than OpenBLAS.
  int most_batch;
  // A whole tile has kRows rows of this many vectors.
  int vectors;
  // tiles[layout][r - 1][v - 1] computes a tile of r rows and v vectors.
  std::array<Functions, kTileLayouts> tiles;

  int width() const { return vector_floats * vectors; }
};

// Null for the portable set. The machine must have the set to call the kernels.
const TileKernel* TileKernelOf(InstructionSet set);

}  // namespace ballast
