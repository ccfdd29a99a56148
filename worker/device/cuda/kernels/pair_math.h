// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

// Order of the pairs of a dot interaction: (1, 0), (2, 0), (2, 1), (3, 0) ...
namespace ballast {

// u is less than v.
struct Pair {
  int64_t v, u;
};

// The pair with index p. Its v is the largest number for which v (v - 1) / 2 <= p.
__host__ __device__ inline Pair PairOf(int64_t p) {
  int64_t v = static_cast<int64_t>((1.0f + sqrtf(1.0f + 8.0f * static_cast<float>(p))) / 2.0f);
  // Corrects the rounding of the root.
  while (v * (v - 1) / 2 > p) --v;
  while (v * (v + 1) / 2 <= p) ++v;
  return {v, p - v * (v - 1) / 2};
}

// Index of the pair of a and b, in any order.
__host__ __device__ inline int64_t PairIndex(int64_t a, int64_t b) {
  return a > b ? a * (a - 1) / 2 + b : b * (b - 1) / 2 + a;
}

}  // namespace ballast
