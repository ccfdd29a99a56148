// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/job.pb.h"

namespace ballast {

// Returns the figure of an evaluation that a job decides by; NaN if the evaluation has none. TEST_METRIC_UNSPECIFIED is
// the loss.
double MetricValue(v1::TestMetric metric, const v1::Evaluation& evaluation);

// Returns by how much a value is better than another one: positive if it is better, NaN if one of them is NaN.
double MetricGain(v1::TestMetric metric, double value, double than);

// Returns the metric's name in messages, such as "accuracy".
const char* MetricName(v1::TestMetric metric);

// Returns the area under the ROC curve and, if known, that of the probabilities from which the labels were drawn:
// "0.7843 (Bayes 0.8070)".
std::string AucText(double auc, const std::optional<double>& bayes_auc);

// Returns the figures that an evaluation has besides its loss: ", accuracy 0.8931" or, for one of two labels,
// ", accuracy 0.8931, AUC 0.7843 (Bayes 0.8070), calibration 1.012"; empty if it has none.
std::string EvaluationText(const v1::Evaluation& evaluation);

}  // namespace ballast
