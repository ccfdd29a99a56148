// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/test_metric.h"

#include <limits>

namespace ballast {

double MetricValue(v1::TestMetric metric, const v1::Evaluation& evaluation) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  switch (metric) {
    case v1::TEST_ACCURACY:
      return evaluation.has_accuracy() ? evaluation.accuracy() : kNone;
    case v1::TEST_AUC:
      return evaluation.has_auc() ? evaluation.auc() : kNone;
    default:
      return evaluation.loss();
  }
}

double MetricGain(v1::TestMetric metric, double value, double than) {
  const bool rises = metric == v1::TEST_ACCURACY || metric == v1::TEST_AUC;
  return rises ? value - than : than - value;
}

const char* MetricName(v1::TestMetric metric) {
  switch (metric) {
    case v1::TEST_ACCURACY:
      return "accuracy";
    case v1::TEST_AUC:
      return "AUC";
    default:
      return "loss";
  }
}

}  // namespace ballast
