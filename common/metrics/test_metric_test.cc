// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/test_metric.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ballast {
namespace {

TEST(TestMetricTest, EachMetricHasItsFigureOfAnEvaluation) {
  v1::Evaluation evaluation;
  evaluation.set_loss(0.5);
  evaluation.set_accuracy(0.75);
  evaluation.set_auc(0.875);
  EXPECT_EQ(MetricValue(v1::TEST_LOSS, evaluation), 0.5);
  EXPECT_EQ(MetricValue(v1::TEST_METRIC_UNSPECIFIED, evaluation), 0.5);
  EXPECT_EQ(MetricValue(v1::TEST_ACCURACY, evaluation), 0.75);
  EXPECT_EQ(MetricValue(v1::TEST_AUC, evaluation), 0.875);
}

TEST(TestMetricTest, AFigureThatAnEvaluationLacksIsNaN) {
  EXPECT_TRUE(std::isnan(MetricValue(v1::TEST_ACCURACY, {})));
  EXPECT_TRUE(std::isnan(MetricValue(v1::TEST_AUC, {})));
}

TEST(TestMetricTest, ALossGainsAsItFallsAndTheOthersAsTheyRise) {
  EXPECT_EQ(MetricGain(v1::TEST_LOSS, 1, 3), 2);
  EXPECT_EQ(MetricGain(v1::TEST_METRIC_UNSPECIFIED, 3, 1), -2);
  EXPECT_EQ(MetricGain(v1::TEST_ACCURACY, 0.75, 0.5), 0.25);
  EXPECT_EQ(MetricGain(v1::TEST_AUC, 0.5, 0.75), -0.25);
  EXPECT_TRUE(std::isnan(MetricGain(v1::TEST_AUC, NAN, 0.75)));
}

TEST(TestMetricTest, TextHasTheFiguresThatAnEvaluationHas) {
  v1::Evaluation evaluation;
  EXPECT_EQ(EvaluationText(evaluation), "");
  evaluation.set_accuracy(0.75);
  EXPECT_EQ(EvaluationText(evaluation), ", accuracy 0.7500");
  evaluation.set_auc(0.78434);
  evaluation.set_calibration(1.01234);
  EXPECT_EQ(EvaluationText(evaluation), ", accuracy 0.7500, AUC 0.7843, calibration 1.012");
  evaluation.set_bayes_auc(0.807);
  EXPECT_EQ(EvaluationText(evaluation), ", accuracy 0.7500, AUC 0.7843 (Bayes 0.8070), calibration 1.012");
}

}  // namespace
}  // namespace ballast
