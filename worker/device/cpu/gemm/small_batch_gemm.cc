// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/gemm/small_batch_gemm.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "worker/device/cpu/gemm/packing.h"

namespace ballast {
namespace {

constexpr int64_t kRows = TileKernel::kRows;
constexpr int64_t kLineBytes = 64;

// Returns whether rows of that many floats are whole pages apart. Then all rows of a column have the same few places in
// the caches.
bool RowsArePagesApart(int64_t floats) {
  constexpr int64_t kPageFloats = 1024;
  return floats % kPageFloats == 0;
}

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Room for n floats from the start of a cache line; previous contents are lost.
float* Reserve(std::vector<float>& memory, int64_t n) {
  const size_t size = n + kLineBytes / sizeof(float);
  if (memory.size() < size) memory.resize(size);
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<float*>((address + kLineBytes - 1) / kLineBytes * kLineBytes);
}

}  // namespace

bool SmallBatchGemm::Suits(const Product& q) const {
  // With fewer weights, or in a narrow layer, packing costs too much.
  constexpr int64_t kLeastWeights = int64_t{1} << 16;
  constexpr int64_t kLeastSide = 128;
  constexpr int64_t kLeastBatch = 8;
  if (q.a_transposed && q.b_transposed) return false;
  const int64_t batch = q.a_transposed ? q.depth : q.rows;
  const int64_t side = q.columns;
  const int64_t other = q.a_transposed ? q.rows : q.depth;
  return batch >= kLeastBatch && batch <= kernel_.most_batch && side >= kLeastSide && other >= kLeastSide &&
         side >= kLeastWeights / other;
}

void SmallBatchGemm::Multiply(const Product& q) {
  if (q.a_transposed) {
    std::unique_ptr<WeightGradient> gradient = BeginWeightGradient(q);
    ComputeRows(*gradient, 0, q.rows);
    EndWeightGradient(std::move(gradient));
  } else if (q.b_transposed) {
    BeginForward(q);
    EndForward();
  } else {
    InputGradient(q);
  }
}

void SmallBatchGemm::Run(TileLayout layout, const Tile& tile, int64_t rows, int64_t columns) const {
  const int64_t vectors = (columns + kernel_.vector_floats - 1) / kernel_.vector_floats;
  kernel_.tiles[static_cast<int>(layout)][rows - 1][vectors - 1](tile);
}

void SmallBatchGemm::Split(int64_t size, int64_t unit, const std::function<void(Range, int)>& work) const {
  const int64_t part = RoundUp((size + threads_ - 1) / threads_, unit);
  std::vector<std::thread> others;
  for (int64_t begin = part; begin < size; begin += part) {
    const int number = static_cast<int>(others.size()) + 1;
    others.emplace_back([&work, begin, part, size, number] { work({begin, std::min(begin + part, size)}, number); });
  }
  work({0, std::min(part, size)}, 0);
  for (std::thread& other : others) other.join();
}

// c^T = b^T a^T. The weights, stored as b^T [columns, depth], are the left side, read in place; a^T is the right
// side, in panels. A part of the depth of all panels (128 or 256 KiB at a batch of 64) stays in the L2 cache while the
// weights are read.
void SmallBatchGemm::BeginForward(const Product& q) {
  const int64_t width = kernel_.width();
  const int64_t padded = RoundUp(q.rows, width);
  float* const right = Reserve(right_, padded * q.depth);
  for (int64_t i = 0; i < q.rows; i += width) {
    const int64_t rows = std::min(width, q.rows - i);
    float* const panel = right + i * q.depth;
    if (rows < width) std::fill_n(panel, width * q.depth, 0.0f);
    Transpose(q.a + i * q.depth, q.depth, rows, q.depth, panel, width);
  }
  begun_ = q;
  begun_right_ = right;
  computed_.assign(RoundUp(q.columns, kRows) / kRows, false);
}

void SmallBatchGemm::ForwardInside(int64_t begin, int64_t end) {
  const int64_t last = end == begun_.columns ? static_cast<int64_t>(computed_.size()) : end / kRows;
  ForwardGroups(RoundUp(begin, kRows) / kRows, last);
}

void SmallBatchGemm::EndForward() { ForwardGroups(0, computed_.size()); }

void SmallBatchGemm::ForwardGroups(int64_t first, int64_t last) {
  // So many sums (128 KiB), for whole groups, stay in the L2 cache beside the panels; but few columns are not worth
  // reading all panels.
  constexpr int64_t kMostSums = 32768;
  constexpr int64_t kLeastColumns = 480;
  const int64_t padded = RoundUp(begun_.rows, kernel_.width());
  const int64_t at_once = RoundUp(std::max(kMostSums / padded, kLeastColumns), kRows);
  of_thread_.resize(threads_);
  while (first < last) {
    if (computed_[first]) {
      ++first;
      continue;
    }
    const int64_t offset = first * kRows;
    for (; first < last && !computed_[first]; ++first) computed_[first] = true;
    Split(std::min(first * kRows, begun_.columns) - offset, kRows, [&](Range range, int number) {
      for (int64_t j = range.begin; j < range.end; j += at_once) {
        ForwardColumns({offset + j, offset + std::min(j + at_once, range.end)}, of_thread_[number]);
      }
    });
  }
}

void SmallBatchGemm::ForwardColumns(Range range, std::vector<float>& memory) const {
  const Product& q = begun_;
  const int64_t width = kernel_.width();
  const int64_t padded = RoundUp(q.rows, width);
  // The tiles of the first panels prefetch so many of the next rows each: a few, if there are enough panels, since
  // memory does not give all of them in the time of one tile.
  const bool spreads = padded / width >= kRows / TileKernel::kFewRows;
  const int rows_each = spreads ? TileKernel::kFewRows : kRows;
  // With rows that are whole pages apart, half as many numbers at once were measured to be faster.
  const int64_t most_depth = spreads && RowsArePagesApart(q.depth) ? 512 : 1024;
  // c^T's rows in the range, padded.
  float* const sums = Reserve(memory, (range.end - range.begin) * padded);
  Tile tile{.left_row = q.depth, .c_row = padded, .fetch_row = q.depth};
  for (int64_t p = 0; p < q.depth; p += most_depth) {
    tile.depth = std::min(most_depth, q.depth - p);
    tile.accumulate = p > 0;
    for (int64_t j = range.begin; j < range.end; j += kRows) {
      tile.left = q.b + j * q.depth + p;
      for (int64_t i = 0, fetched = 0; i < q.rows; i += width, fetched += rows_each) {
        const bool fetches = fetched < kRows && j + 2 * kRows <= range.end;
        tile.fetch_rows = fetches ? rows_each : 0;
        tile.fetch = fetches ? tile.left + (kRows + fetched) * q.depth : nullptr;
        tile.right = begun_right_ + i * q.depth + p * width;
        tile.c = sums + (j - range.begin) * padded + i;
        Run(TileLayout::kRowsTimesPanel, tile, std::min(kRows, range.end - j), std::min(width, q.rows - i));
      }
    }
  }
  Transpose(sums, padded, range.end - range.begin, q.rows, q.c + range.begin, q.columns);
}

// c = a b. The left side is a, with kRows rows interleaved: number p of row i of a group is at p * kRows + i.
void SmallBatchGemm::InputGradient(const Product& q) {
  // So many sums (256 KiB), for whole blocks of columns, stay in the L2 cache beside the blocks.
  constexpr int64_t kMostSums = 65536;
  constexpr int64_t kBlockColumns = 512;
  float* const left = Reserve(left_, RoundUp(q.rows, kRows) * q.depth);
  for (int64_t i = 0; i < q.rows; i += kRows) {
    Transpose(q.a + i * q.depth, q.depth, std::min(kRows, q.rows - i), q.depth, left + i * q.depth, kRows);
  }
  const Product interleaved = {.a = left, .b = q.b, .c = q.c, .rows = q.rows, .columns = q.columns, .depth = q.depth};
  const int64_t at_once = RoundUp(std::max(kMostSums / q.rows, kBlockColumns), kBlockColumns);
  of_thread_.resize(threads_);
  Split(q.columns, kernel_.width(), [&](Range range, int number) {
    for (int64_t j = range.begin; j < range.end; j += at_once) {
      InputGradientColumns(interleaved, {j, std::min(j + at_once, range.end)}, of_thread_[number]);
    }
  });
}

// Uses the interleaved a. The weights b [depth, columns] are the right side, in blocks, each packed while the tiles of
// the one before are computed. A panel (8 or 16 KiB) stays in the L1 cache while its tiles are computed; two blocks (64
// or 128 KiB each) and the sums of all columns stay in the L2 cache.
void SmallBatchGemm::InputGradientColumns(const Product& q, Range range, std::vector<float>& memory) const {
  const int64_t width = kernel_.width();
  const bool wide = width > 16;
  const int64_t depth_of_block = wide ? 64 : 128;
  const int64_t columns_of_block = wide ? 512 : 128;
  std::vector<Block> blocks;
  for (int64_t p = 0; p < q.depth; p += depth_of_block) {
    for (int64_t j = range.begin; j < range.end; j += columns_of_block) {
      blocks.push_back({p, std::min(depth_of_block, q.depth - p), j, std::min(columns_of_block, range.end - j)});
    }
  }
  // Empty: nothing is packed while the last tiles are computed.
  const Block& none = blocks.emplace_back();
  // Panels that were a power of two apart would have few places in a cache for their rows.
  const int64_t panel = depth_of_block * width + kLineBytes / sizeof(float);
  const int64_t block_size = columns_of_block / width * panel;
  float* right = Reserve(memory, 2 * block_size + RoundUp(range.end - range.begin, width) * q.rows);
  float* next_right = right + block_size;
  // In panels [rows, width].
  float* const sums = right + 2 * block_size;
  BlockPacker(q.b, q.columns, blocks[0], blocks[1], width, panel, right).PackPart(1, 1);
  Tile tile{.c_row = width};
  for (const Block* block = &blocks[0]; block != &none; ++block) {
    const Block* const next = block + 1;
    BlockPacker packer(q.b, q.columns, *next, next == &none ? none : *(next + 1), width, panel, next_right);
    const int64_t tiles = RoundUp(block->columns, width) / width * RoundUp(q.rows, kRows) / kRows;
    int64_t computed = 0;
    tile.depth = block->rows;
    tile.accumulate = block->row > 0;
    for (int64_t j = 0; j < block->columns; j += width) {
      tile.right = right + j / width * panel;
      for (int64_t i = 0; i < q.rows; i += kRows) {
        tile.left = q.a + i * q.depth + block->row * kRows;
        tile.c = sums + (block->column + j - range.begin) * q.rows + i * width;
        Run(TileLayout::kInterleavedTimesPanel, tile, std::min(kRows, q.rows - i), std::min(width, block->columns - j));
        packer.PackPart(++computed, tiles);
      }
    }
    std::swap(right, next_right);
  }
  UnpackPanels(sums, q.rows, range.end - range.begin, width, q.c + range.begin, q.columns);
}

// c = a^T b; the depth is the batch. The left side is a, with kRows columns together; the right side is panels of b.
std::unique_ptr<SmallBatchGemm::WeightGradient> SmallBatchGemm::BeginWeightGradient(const Product& q) {
  auto gradient = std::make_unique<WeightGradient>();
  if (!ended_.empty()) {
    gradient = std::move(ended_.back());
    ended_.pop_back();
  }
  gradient->product = q;
  float* const left = Reserve(gradient->left_memory, RoundUp(q.rows, kRows) * q.depth);
  PackPanels(q.a, q.rows, q.depth, q.rows, kRows, left);
  gradient->left = left;
  float* const right = Reserve(gradient->right_memory, RoundUp(q.columns, kernel_.width()) * q.depth);
  PackPanels(q.b, q.columns, q.depth, q.columns, kernel_.width(), right);
  gradient->right = right;
  gradient->computed.assign(RoundUp(q.rows, kRows) / kRows, false);
  return gradient;
}

void SmallBatchGemm::ComputeRows(WeightGradient& gradient, int64_t begin, int64_t end) const {
  // Starting threads costs as much as a few rows.
  constexpr int64_t kMostParts = 4;
  const int64_t rows = gradient.product.rows;
  if (threads_ > 1) end = std::max(end, std::min(rows, begin + rows / kMostParts));
  std::vector<bool>& computed = gradient.computed;
  const int64_t last = RoundUp(end, kRows) / kRows;
  for (int64_t group = begin / kRows; group < last;) {
    if (computed[group]) {
      ++group;
      continue;
    }
    const int64_t first = group;
    for (; group < last && !computed[group]; ++group) computed[group] = true;
    const int64_t offset = first * kRows;
    Split(std::min(group * kRows, rows) - offset, kRows, [&](Range range, int) {
      WeightGradientRows(gradient, {offset + range.begin, offset + range.end});
    });
  }
}

// While a panel of the right side passes, the left side of some groups (9 KiB for six at a batch of 64) stays in the L1
// cache. If rows of c are whole pages apart, only a few are written at once. They are stored through the caches, since
// another thread reads them soon; past them also takes a fifth longer on some processors.
void SmallBatchGemm::WeightGradientRows(const WeightGradient& gradient, Range range) const {
  const int64_t groups = RowsArePagesApart(gradient.product.columns) ? 2 : 6;
  const Product& q = gradient.product;
  const int64_t width = kernel_.width();
  Tile tile{.depth = q.depth};
  // Holds a tile of c that ends inside a vector.
  alignas(kLineBytes) float end[kRows * TileKernel::kMostWidth];
  for (int64_t i0 = range.begin; i0 < range.end; i0 += groups * kRows) {
    const int64_t i1 = std::min(i0 + groups * kRows, range.end);
    for (int64_t j = 0; j < q.columns; j += width) {
      const int64_t n = std::min(width, q.columns - j);
      const bool whole_vectors = n % kernel_.vector_floats == 0;
      tile.right = gradient.right + j * q.depth;
      tile.c_row = whole_vectors ? q.columns : width;
      for (int64_t i = i0; i < i1; i += kRows) {
        const int64_t rows = std::min(kRows, i1 - i);
        float* const c = q.c + i * q.columns + j;
        tile.left = gradient.left + i * q.depth;
        tile.c = whole_vectors ? c : end;
        Run(TileLayout::kInterleavedTimesPanel, tile, rows, n);
        for (int64_t r = 0; r < rows && !whole_vectors; ++r) {
          std::memcpy(c + r * q.columns, end + r * width, n * sizeof(float));
        }
      }
    }
  }
}

}  // namespace ballast
