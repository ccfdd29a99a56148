// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ballast {

// One tile of a product, c = left right (+ c): left is [rows, depth] and read one number at a time, right is
// [depth, columns] and read one vector at a time.
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
  // Whether the products are added to what c holds.
  bool accumulate = false;
  // Whether c goes past the caches, for a c that they could not hold; it is then aligned to a vector. A fence must
  // follow before another thread reads c.
  bool stream = false;
  // Null, or where the rows of right go as they are read, one vector after the other, width() apart: a packed copy for
  // the tiles that follow.
  float* copy = nullptr;
  // Null, or what later tiles read: `depth` numbers of each of kRows rows, fetch_row apart, are brought into the
  // second-level cache bit by bit while this tile is computed.
  const float* fetch = nullptr;
  int64_t fetch_row = 0;
};

// A processor's way to compute tiles. Each element of c is one chain of fused multiply-adds in the order of p, so that
// every kernel, every blocking of the depth and every split over threads give the same bits.
struct TileKernel {
  static constexpr int kRows = 6;
  static constexpr int kMostVectors = 4;
  static constexpr int kMostWidth = 64;

  const char* name;
  int vector_floats;
  // Up to which a SmallBatchGemm was seen to be faster than OpenBLAS.
  int most_batch;
  // A whole tile is kRows rows of this many vectors.
  int vectors;
  // tiles[r - 1][v - 1] computes a tile of r rows and v vectors.
  void (*tiles[kRows][kMostVectors])(const Tile&);

  int width() const { return vector_floats * vectors; }
};

// Null where this processor lacks the instructions.
const TileKernel* Avx512TileKernel();
const TileKernel* Avx2TileKernel();

}  // namespace ballast
