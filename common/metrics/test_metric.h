// SPDX-License-Identifier: Apache-2.0
#pragma once

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

}  // namespace ballast
