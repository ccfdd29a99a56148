// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Copies matrices into the order in which the tiles of a product read them.
namespace ballast {

// to[p * to_row + i] = from[i * from_row + p] for i < rows and p < columns.
void Transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row);

// Copies a matrix [depth, columns] into consecutive panels [depth, width]; pads the last one with zeros.
void PackPanels(const float* from, int64_t from_row, int64_t depth, int64_t columns, int64_t width, float* to);
// Copies panels back to a matrix [depth, columns].
void UnpackPanels(const float* from, int64_t depth, int64_t columns, int64_t width, float* to, int64_t to_row);

// A part of a matrix: so many rows and columns from these on.
struct Block {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
};

// Packs a block of a large matrix into panels [rows of the block, width], some at a time, while something else is
// computed. The width is that of a TileKernel, 16 or 64. Thread safety: none.
class BlockPacker {
 public:
  // Packs to panels at `to` that are `panel` floats apart. `then` is the block that will be packed next.
  BlockPacker(const float* from, int64_t from_row, const Block& block, const Block& then, int64_t width, int64_t panel,
              float* to)
      : from_(from + block.row * from_row + block.column),
        then_(from + then.row * from_row + then.column),
        from_row_(from_row),
        rows_(block.rows),
        columns_(block.columns),
        width_(width),
        panel_(panel),
        to_(to) {}

  // Goes on until `part` of `parts` of the rows are packed, and prefetches those that come soon.
  void PackPart(int64_t part, int64_t parts) {
    for (const int64_t end = part * rows_ / parts; packed_ < end; ++packed_) PackRow();
  }

 private:
  void PackRow();

  const float* const from_;
  const float* const then_;
  const int64_t from_row_, rows_, columns_, width_, panel_;
  float* const to_;
  int64_t packed_ = 0;
};

}  // namespace ballast
