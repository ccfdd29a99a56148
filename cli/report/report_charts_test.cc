// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report_charts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ballast {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Titles(const Metrics& metrics) {
  std::vector<std::string> titles;
  for (const LineChart& chart : ReportCharts(metrics)) titles.push_back(chart.title);
  return titles;
}

Metrics TrainLines(int count, TrainMetrics line) {
  Metrics metrics;
  for (int i = 0; i < count; ++i) {
    line.step = 10 * (i + 1);
    metrics.train.push_back(line);
  }
  return metrics;
}

TEST(ReportChartsTest, SyncRunWithATestSetShowsLossAccuracyAndThroughput) {
  Metrics metrics = TrainLines(2, {.loss = 1, .samples_per_second = 100});
  metrics.test = {{.epoch = 1, .step = 20, .loss = 1, .accuracy = 0.5}};
  EXPECT_THAT(Titles(metrics), ElementsAre("Loss", "Test accuracy", "Throughput"));
}

TEST(ReportChartsTest, StalenessWaitingAndLearningRateAreShownWhereTheyAreNotConstant) {
  Metrics metrics = TrainLines(2, {.loss = 1, .learning_rate = 0.1, .staleness = 0.5, .wait_share = 0.25});
  metrics.train[1].learning_rate = 0.05;
  EXPECT_THAT(Titles(metrics), ElementsAre("Loss", "Staleness", "Waiting", "Learning rate"));
}

TEST(ReportChartsTest, RegressionHasNoAccuracyButATestLoss) {
  Metrics metrics = TrainLines(2, {.loss = 1});
  metrics.test = {{.epoch = 1, .step = 20, .loss = 1}};
  const std::vector<LineChart> charts = ReportCharts(metrics);
  ASSERT_EQ(charts.size(), 1);
  ASSERT_EQ(charts[0].series.size(), 2);
  EXPECT_EQ(charts[0].series[1].name, "test");
}

TEST(ReportChartsTest, WithoutMetricsTheLossChartIsEmpty) {
  const std::vector<LineChart> charts = ReportCharts(Metrics());
  ASSERT_EQ(charts.size(), 1);
  EXPECT_TRUE(charts[0].series.empty());
}

TEST(ReportChartsTest, ManyPointsAreSmoothedOverTheRawOnes) {
  EXPECT_EQ(ReportCharts(TrainLines(5, {.loss = 1}))[0].series.size(), 1);
  const std::vector<LineChart> charts = ReportCharts(TrainLines(50, {.loss = 1}));
  ASSERT_EQ(charts[0].series.size(), 2);
  EXPECT_TRUE(charts[0].series[0].faint);
  EXPECT_EQ(charts[0].series[1].name, "train");
}

TEST(ReportChartsTest, LossThatFallsFarGetsALogarithmicAxis) {
  Metrics metrics = TrainLines(2, {.loss = 2});
  metrics.train[1].loss = 0.2;
  EXPECT_FALSE(ReportCharts(metrics)[0].logarithmic);
  metrics.train[1].loss = 0.002;
  EXPECT_TRUE(ReportCharts(metrics)[0].logarithmic);
}

TEST(ReportChartsTest, SmoothedIsTheMeanOfTheNeighboursAndKeepsTheFirstPoint) {
  const std::vector<ChartPoint> smoothed = Smoothed({{1, 6}, {2, 0}, {3, 3}, {4, 9}});
  ASSERT_EQ(smoothed.size(), 4);
  EXPECT_EQ(smoothed[0].y, 6);
  EXPECT_EQ(smoothed[1].y, 3);
  EXPECT_EQ(smoothed[2].y, 4);
  EXPECT_EQ(smoothed[3].y, 6);
}

TEST(ReportChartsTest, SmoothedKeepsAGapAGap) {
  const std::vector<ChartPoint> smoothed = Smoothed({{1, 2}, {2, NAN}, {3, 4}});
  EXPECT_EQ(smoothed[0].y, 2);
  EXPECT_TRUE(std::isnan(smoothed[1].y));
  EXPECT_EQ(smoothed[2].y, 4);
}

}  // namespace
}  // namespace ballast
