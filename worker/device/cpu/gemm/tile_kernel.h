// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "common/simd/instruction_set.h"

namespace ballast {

// One tile of a product, c = left right (+ c): left is [rows, depth] and read one number at a time, right is [depth,
// columns] and read one vector at a time.
struct Tile {
  // Element (i, p) of left is left[i * left_row + p * left_step].
  const float* left = nullptr;
  int64_t left_row = 0;
  int64_t left_step = 0;
  // Row p of right begins at right[p * right_step].
  const float* right = nullptr;
  int64_t right_step = 0;
  int64_t depth = 0;
  // Row i of c begins at c[i * c_row].
  float* c = nullptr;
  int64_t c_row = 0;
  // Adds the products to the contents of c.
  bool accumulate = false;
  // Stores c past the caches, if it is too large for them; c must then be aligned to a vector. A fence must follow
  // before another thread reads c.
  bool stream = false;
  // If not null, the rows of right are copied here as they are read, one vector after the other, width() apart: a
  // packed copy for later tiles.
  float* copy = nullptr;
  // If not null, data that later tiles read: `depth` numbers in each of kRows rows, fetch_row apart, are gradually
  // prefetched into the L2 cache while this tile is computed.
  const float* fetch = nullptr;
  int64_t fetch_row = 0;
};

// An instruction set's kernels for tiles. Each element of c is one chain of fused multiply-adds in the order of p, so
// that every kernel, every blocking of the depth and every split over threads give the same bits.
struct TileKernel {
  static constexpr int kRows = 6;
  static constexpr int kMostVectors = 4;
  static constexpr int kMostWidth = 64;

  const char* name;
  int vector_floats;
  // Largest batch at which SmallBatchGemm was measured to be faster than OpenBLAS.
  int most_batch;
  // A whole tile has kRows rows of this many vectors.
  int vectors;
  // tiles[r - 1][v - 1] computes a tile of r rows and v vectors.
  void (*tiles[kRows][kMostVectors])(const Tile&);

  int width() const { return vector_floats * vectors; }
};

// Null for the portable set. The machine must have the set to call the kernels.
const TileKernel* TileKernelOf(InstructionSet set);

}  // namespace ballast
