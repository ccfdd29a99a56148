// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include "absl/types/span.h"
#include "server/optimizers/instruction_set.h"

namespace ballast {

// The sum of the squares of numbers that come in blocks. Element i is added to the lane i % 16, so its bits do not
// depend on how the numbers are cut into blocks, nor on the instruction set.
// Thread safety: none.
class SquareSum {
 public:
  explicit SquareSum(InstructionSet set) : set_(set) {}

  void Add(absl::Span<const float> block);

  // The root of the sum.
  double Norm() const;

 private:
  static constexpr size_t kLanes = 16;
  struct Loop;

  const InstructionSet set_;
  // Double, where the square of a float is exact and none overflows.
  std::array<double, kLanes> lanes_ = {};
  // Where the next element goes.
  size_t next_ = 0;
};

}  // namespace ballast
