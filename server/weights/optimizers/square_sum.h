// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include "absl/base/attributes.h"
#include "common/simd/instruction_set.h"

namespace ballast {

// Owns the sum of the squares of a slice's elements. The square of element i goes to lane i % kLanes, so the bits
// depend neither on the cuts between blocks nor on the instruction set.
// Thread safety: none.
class SquareSum {
 public:
  static constexpr size_t kLanes = 16;

  // Calls take(i, lane) for each i below `n`, where i is element first + i of the slice. For use in an instruction
  // set's loop: whole groups of lanes are vectorized if `take` is ABSL_ATTRIBUTE_ALWAYS_INLINE and writes nothing
  // that it reads for another i.
  template <typename Take>
  ABSL_ATTRIBUTE_ALWAYS_INLINE static void ForEachLane(size_t first, size_t n, Take take) {
    size_t i = 0;
    for (; i < n && (first + i) % kLanes != 0; ++i) take(i, (first + i) % kLanes);
    for (; i + kLanes <= n; i += kLanes) {
      BALLAST_INDEPENDENT_ITERATIONS
      for (size_t lane = 0; lane < kLanes; ++lane) take(i + lane, lane);
    }
    for (; i < n; ++i) take(i, (first + i) % kLanes);
  }

  ABSL_ATTRIBUTE_ALWAYS_INLINE void Take(size_t lane, float x) {
    lanes_[lane] += static_cast<double>(x) * static_cast<double>(x);
  }

  // The square root of the sum.
  double Norm() const {
    double sum = 0;
    for (double lane : lanes_) sum += lane;
    return std::sqrt(sum);
  }

 private:
  // Double, because it holds the square of a float exactly and does not overflow.
  double lanes_[kLanes] = {};
};

}  // namespace ballast
