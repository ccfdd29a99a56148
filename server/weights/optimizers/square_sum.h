// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include "absl/base/attributes.h"
#include "common/simd/instruction_set.h"

namespace ballast {

// The sum of the squares of a slice's numbers. The square of element i goes to lane i % kLanes, so that its bits depend
// neither on how the slice is cut into blocks nor on the instruction set.
// Thread safety: none.
class SquareSum {
 public:
  static constexpr size_t kLanes = 16;

  // Calls take(i, lane) for each i below `n`, i being element first + i of the slice. For the loop of an instruction
  // set: whole groups of lanes become vectors, if `take` is ABSL_ATTRIBUTE_ALWAYS_INLINE and writes nothing that it
  // reads for another i.
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

  // The root of the sum.
  double Norm() const {
    double sum = 0;
    for (double lane : lanes_) sum += lane;
    return std::sqrt(sum);
  }

 private:
  // Double, where the square of a float is exact and none overflows.
  double lanes_[kLanes] = {};
};

}  // namespace ballast
