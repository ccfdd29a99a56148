// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/types/span.h"

namespace ballast {

// A prediction for an example with one of two labels.
struct BinaryScore {
  // The logit of the probability of the label 1.
  double logit = 0;
  bool label = false;
};

// Area under the ROC curve: the probability that an example with label 1 has a higher score than one with label 0,
// where equal scores count half. 0.5 if all labels are equal; NaN if a logit is NaN, because that has no order.
double AreaUnderCurve(absl::Span<const BinaryScore> scores);

// Mean of -log(probability of the label), in nats; 0 for no scores.
double LogLoss(absl::Span<const BinaryScore> scores);

// Sum of the predicted probabilities divided by the number of labels 1; infinite if there is none.
double Calibration(absl::Span<const BinaryScore> scores);

}  // namespace ballast
