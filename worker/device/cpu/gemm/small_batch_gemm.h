// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/device/cpu/gemm/tile_kernel.h"

namespace ballast {

// A product c = a b of row-major matrices, a [rows, depth] and b [depth, columns], either of them stored transposed.
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

// Computes the three products of a dense layer with large weights w [units, inputs] at a small batch: forward
// y = x w^T, the input's gradient dx = dy w and the weights' gradient dw = dy^T x. What has the batch's size is packed
// and stays in the second-level cache; what has the weights' size goes by once, fetched ahead of its use, where a
// library made for large batches first packs it.
//
// Right for any size; meant for those that Suits. Threads split the side of c that the weights give it. The same bits
// for any number of threads and for every kernel (see TileKernel). Thread safety: one call at a time.
class SmallBatchGemm {
 public:
  // `kernel` is one that this processor runs.
  SmallBatchGemm(const TileKernel& kernel, int threads) : kernel_(kernel), threads_(threads) {}

  const TileKernel& kernel() const { return kernel_; }

  // Whether Multiply is likely to be faster than OpenBLAS.
  bool Suits(const Product& product) const;
  // Of a and b at most one is transposed. c overlaps neither and is not read.
  void Multiply(const Product& product);

 private:
  // From `begin` to before `end`.
  struct Range {
    int64_t begin;
    int64_t end;
  };

  void Forward(const Product& q);
  void InputGradient(const Product& q);
  void InputGradientColumns(const Product& q, Range range, std::vector<float>& memory) const;
  void WeightGradient(const Product& q);
  void WeightGradientRows(const Product& q, Range range, const float* left, const float* right) const;

  // Calls work(range, its number) on a thread each, for ranges that make up [0, size); all but the last have a size
  // that is a multiple of `unit`.
  void Split(int64_t size, int64_t unit, const std::function<void(Range, int)>& work) const;
  void Run(const Tile& tile, int64_t rows, int64_t columns) const;

  const TileKernel& kernel_;
  const int threads_;
  // What a call packs and sums up in; kept, for new memory costs more than its use.
  std::vector<float> left_;
  std::vector<float> right_;
  std::vector<std::vector<float>> of_thread_;
};

}  // namespace ballast
