// SPDX-License-Identifier: Apache-2.0
#include "server/optimizers/square_sum.h"

#include <algorithm>
#include <cmath>

namespace ballast {

// Whole groups of one element a lane.
struct SquareSum::Loop {
  const float* values;
  size_t groups;
  double* lanes;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    double sums[kLanes];
    std::copy_n(lanes, kLanes, sums);
    for (size_t group = 0; group < groups; ++group) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const double x = values[group * kLanes + lane];
        sums[lane] += x * x;
      }
    }
    std::copy_n(sums, kLanes, lanes);
  }
};

void SquareSum::Add(absl::Span<const float> block) {
  const auto add_one = [&](float value) {
    lanes_[next_] += static_cast<double>(value) * value;
    next_ = (next_ + 1) % kLanes;
  };
  const size_t before = std::min(block.size(), (kLanes - next_) % kLanes);
  const size_t groups = (block.size() - before) / kLanes;
  for (float value : block.first(before)) add_one(value);
  Run(set_, Loop{block.data() + before, groups, lanes_.data()});
  for (float value : block.subspan(before + groups * kLanes)) add_one(value);
}

double SquareSum::Norm() const {
  double sum = 0;
  for (double lane : lanes_) sum += lane;
  return std::sqrt(sum);
}

}  // namespace ballast
