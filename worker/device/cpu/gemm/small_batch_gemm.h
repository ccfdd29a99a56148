// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/device/cpu/gemm/tile_kernel.h"

namespace ballast {

// A product c = a b of row-major matrices, a [rows, depth] and b [depth, columns]; each may be stored transposed.
struct Product {
  const float* a = nullptr;
  bool a_transposed = false;
  const float* b = nullptr;
  bool b_transposed = false;
  float* c = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
};

// Computes the three products of a dense layer with large weights w [units, inputs] at a small batch: the output
// y = x w^T, the input gradient dx = dy w and the weight gradient dw = dy^T x. It packs the matrices of the batch's
// size and keeps them in the L2 cache. A matrix of the weights' size passes through only once, with prefetching; a
// library made for large batches would pack it first.
//
// Correct for any size; meant for sizes that Suits accepts. Threads split the dimension of c that the weights give it.
// The bits are the same for any number of threads and every kernel (see TileKernel). Thread safety: one call at a time.
class SmallBatchGemm {
 public:
  // This processor must support `kernel`.
  SmallBatchGemm(const TileKernel& kernel, int threads) : kernel_(kernel), threads_(threads) {}

  const TileKernel& kernel() const { return kernel_; }

  // Returns whether Multiply is likely to be faster than OpenBLAS.
  bool Suits(const Product& product) const;
  // At most one of a and b is transposed. c overlaps neither and is not read.
  void Multiply(const Product& product);

  // The output by columns: BeginForward reads a; b is transposed. Until the next Multiply or BeginForward,
  // ForwardInside computes the columns of c in [begin, end), except perhaps for a few at both ends, from rows [begin,
  // end) of b as stored; EndForward computes those that are missing.
  void BeginForward(const Product& product);
  void ForwardInside(int64_t begin, int64_t end);
  void EndForward();

  // A weight gradient that is computed by rows, between other products: its packed a and b, and which groups of kRows
  // rows are computed.
  struct WeightGradient {
    Product product;
    std::vector<float> left_memory, right_memory;
    const float* left = nullptr;
    const float* right = nullptr;
    std::vector<bool> computed;
  };
  // Reads a, which is transposed, and b.
  std::unique_ptr<WeightGradient> BeginWeightGradient(const Product& product);
  // Computes rows [begin, end) of c, and perhaps others, unless they are already.
  void ComputeRows(WeightGradient& gradient, int64_t begin, int64_t end) const;
  // Keeps the memory for another.
  void EndWeightGradient(std::unique_ptr<WeightGradient> gradient) { ended_.push_back(std::move(gradient)); }

 private:
  // Indices from `begin` to before `end`.
  struct Range {
    int64_t begin;
    int64_t end;
  };

  // Computes columns of the output, in groups of kRows, that are not computed yet.
  void ForwardGroups(int64_t first, int64_t last);
  void ForwardColumns(Range range, std::vector<float>& memory) const;
  void InputGradient(const Product& q);
  void InputGradientColumns(const Product& q, Range range, std::vector<float>& memory) const;
  void WeightGradientRows(const WeightGradient& gradient, Range range) const;

  // Calls work(range, its index) on one thread each, for consecutive ranges of [0, size). The size of each range
  // except the last is a multiple of `unit`.
  void Split(int64_t size, int64_t unit, const std::function<void(Range, int)>& work) const;
  void Run(TileLayout layout, const Tile& tile, int64_t rows, int64_t columns) const;

  const TileKernel& kernel_;
  const int threads_;
  // The output that was begun last: packed a and the groups of kRows columns that are computed.
  Product begun_;
  const float* begun_right_ = nullptr;
  std::vector<bool> computed_;
  // Scratch memory for packing and sums; kept between calls, because allocation costs more than its use.
  std::vector<float> left_;
  std::vector<float> right_;
  std::vector<std::vector<float>> of_thread_;
  std::vector<std::unique_ptr<WeightGradient>> ended_;
};

}  // namespace ballast
