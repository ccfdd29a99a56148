// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

// The CPU device's losses. Outputs are rows of `columns` floats with one label each; `gradient` is empty if it is not
// requested, otherwise it has the size of the outputs.
namespace ballast {

struct LossTotals {
  double loss_sum = 0;
  int64_t correct = 0;
};

// Loss of a row: log(sum_j exp(x_j)) - x_label, shifted by the row's maximum so that nothing overflows.
LossTotals SoftmaxCrossEntropy(absl::Span<const float> outputs, int64_t columns, absl::Span<const float> labels,
                               absl::Span<float> gradient);
// Loss of a row of one column: (x - label)^2.
LossTotals MeanSquaredError(absl::Span<const float> outputs, absl::Span<const float> labels,
                            absl::Span<float> gradient);
// Loss of a row of one column: log(1 + exp(w)) with w = x for label 0 and -x for label 1, computed as max(w, 0) + log(1
// + exp(-|x|)), so that nothing overflows.
LossTotals SigmoidCrossEntropy(absl::Span<const float> outputs, absl::Span<const float> labels,
                               absl::Span<float> gradient);

}  // namespace ballast
