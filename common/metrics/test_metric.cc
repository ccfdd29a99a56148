// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/test_metric.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

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

std::string AucText(double auc, const std::optional<double>& bayes_auc) {
  std::string text = absl::StrFormat("%.4f", auc);
  if (bayes_auc.has_value()) absl::StrAppendFormat(&text, " (Bayes %.4f)", *bayes_auc);
  return text;
}

std::string EvaluationText(const v1::Evaluation& evaluation) {
  std::string text;
  if (evaluation.has_accuracy()) absl::StrAppendFormat(&text, ", accuracy %.4f", evaluation.accuracy());
  if (evaluation.has_auc()) {
    const auto bayes = evaluation.has_bayes_auc() ? std::make_optional(evaluation.bayes_auc()) : std::nullopt;
    absl::StrAppend(&text, ", AUC ", AucText(evaluation.auc(), bayes));
  }
  if (evaluation.has_calibration()) absl::StrAppendFormat(&text, ", calibration %.4g", evaluation.calibration());
  return text;
}

}  // namespace ballast
