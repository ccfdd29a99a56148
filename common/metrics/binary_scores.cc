// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/binary_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace ballast {

double AreaUnderCurve(absl::Span<const BinaryScore> scores) {
  if (std::any_of(scores.begin(), scores.end(), [](const BinaryScore& score) { return std::isnan(score.logit); })) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  std::vector<BinaryScore> sorted(scores.begin(), scores.end());
  std::sort(sorted.begin(), sorted.end(), [](const BinaryScore& a, const BinaryScore& b) { return a.logit < b.logit; });
  double below = 0, ones = 0, zeros = 0;
  for (size_t begin = 0; begin < sorted.size();) {
    double equal_ones = 0, equal_zeros = 0;
    size_t end = begin;
    for (; end < sorted.size() && sorted[end].logit == sorted[begin].logit; ++end) {
      ++(sorted[end].label ? equal_ones : equal_zeros);
    }
    below += equal_ones * (zeros + equal_zeros / 2);
    ones += equal_ones;
    zeros += equal_zeros;
    begin = end;
  }
  return ones == 0 || zeros == 0 ? 0.5 : below / (ones * zeros);
}

double LogLoss(absl::Span<const BinaryScore> scores) {
  double sum = 0;
  for (const BinaryScore& score : scores) {
    const double margin = score.label ? score.logit : -score.logit;
    // log(1 + exp(-margin)), without overflow.
    sum += std::max(-margin, 0.0) + std::log1p(std::exp(-std::abs(margin)));
  }
  return scores.empty() ? 0 : sum / static_cast<double>(scores.size());
}

double Calibration(absl::Span<const BinaryScore> scores) {
  double predicted = 0, ones = 0;
  for (const BinaryScore& score : scores) {
    predicted += 1 / (1 + std::exp(-score.logit));
    ones += score.label ? 1 : 0;
  }
  return ones == 0 ? std::numeric_limits<double>::infinity() : predicted / ones;
}

}  // namespace ballast
