// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/loss.h"

#include <algorithm>
#include <cmath>

namespace ballast {

LossTotals SoftmaxCrossEntropy(absl::Span<const float> outputs, int64_t columns, absl::Span<const float> labels,
                               absl::Span<float> gradient) {
  LossTotals totals;
  const size_t rows = labels.size();
  for (size_t row = 0; row < rows; ++row) {
    const absl::Span<const float> x = outputs.subspan(row * columns, columns);
    const size_t label = static_cast<size_t>(labels[row]);
    const auto largest = std::max_element(x.begin(), x.end());
    const float maximum = *largest;
    if (static_cast<size_t>(largest - x.begin()) == label) ++totals.correct;
    // Read before writing the gradient, which may overwrite x.
    const double label_output = static_cast<double>(x[label]) - maximum;

    double sum = 0;
    if (gradient.empty()) {
      for (const float value : x) sum += std::exp(value - maximum);
    } else {
      const absl::Span<float> dx = gradient.subspan(row * columns, columns);
      for (int64_t j = 0; j < columns; ++j) {
        dx[j] = std::exp(x[j] - maximum);
        sum += dx[j];
      }
      const float scale = static_cast<float>(1.0 / (sum * rows));
      for (float& value : dx) value *= scale;
      dx[label] = static_cast<float>((std::exp(label_output) / sum - 1.0) / rows);
    }
    totals.loss_sum += std::log(sum) - label_output;
  }
  return totals;
}

LossTotals MeanSquaredError(absl::Span<const float> outputs, absl::Span<const float> labels,
                            absl::Span<float> gradient) {
  LossTotals totals;
  const size_t rows = labels.size();
  for (size_t row = 0; row < rows; ++row) {
    const double error = static_cast<double>(outputs[row]) - labels[row];
    totals.loss_sum += error * error;
    if (!gradient.empty()) gradient[row] = static_cast<float>(2.0 * error / rows);
  }
  return totals;
}

LossTotals SigmoidCrossEntropy(absl::Span<const float> outputs, absl::Span<const float> labels,
                               absl::Span<float> gradient) {
  LossTotals totals;
  const size_t rows = labels.size();
  for (size_t row = 0; row < rows; ++row) {
    const double x = outputs[row];
    const bool is_one = labels[row] > 0;
    // The logit of the wrong label.
    const double wrong = is_one ? -x : x;
    // The ratio of the probability of the less likely label to that of the other.
    const double ratio = std::exp(-std::abs(x));
    // This form passes NaN on, so that it shows in the loss.
    totals.loss_sum += (wrong < 0 ? 0 : wrong) + std::log1p(ratio);
    if ((x > 0) == is_one) ++totals.correct;
    if (gradient.empty()) continue;
    const double probability = (wrong < 0 ? ratio : 1) / (1 + ratio);
    gradient[row] = static_cast<float>((is_one ? -probability : probability) / rows);
  }
  return totals;
}

}  // namespace ballast
