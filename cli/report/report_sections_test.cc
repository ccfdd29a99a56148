// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report_sections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(ReportChartsTest, ClickModelShowsItsAucBelowTheBestPossible) {
  Metrics metrics = TrainLines(2, {.loss = 1});
  metrics.test = {{.epoch = 1, .loss = 1, .auc = 0.75}, {.epoch = 2, .loss = 1, .auc = 0.78125}};
  EXPECT_THAT(Titles(metrics), ElementsAre("Loss", "Test AUC"));
  EXPECT_EQ(ReportCharts(metrics)[1].series.size(), 1) << "the best possible is not known";
  const std::vector<LineChart> charts = ReportCharts(metrics, Summary{.bayes_auc = 0.8125});
  ASSERT_EQ(charts.size(), 2);
  ASSERT_EQ(charts[1].series.size(), 2);
  EXPECT_EQ(charts[1].series[0].points[1].y, 0.78125);
  EXPECT_EQ(charts[1].series[1].name, "Bayes");
  EXPECT_EQ(charts[1].series[1].points[0].y, 0.8125);
  EXPECT_EQ(charts[1].series[1].points[1].x, 2);
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

TEST(ReportChartsTest, LegendsHaveTheFiguresOfTheSummaryAndTheTable) {
  Metrics metrics =
      TrainLines(2, {.epoch = 3, .loss = 0.25, .samples_per_second = 90, .staleness = 4, .wait_share = 0.4});
  metrics.epochs = {{.epoch = 3, .train_loss = 0.5}};
  metrics.test = {{.epoch = 3, .loss = 1}};
  const Summary summary = {.samples_per_second = 80, .mean_staleness = 1.5, .wait_share = 0.125};
  const std::vector<LineChart> charts = ReportCharts(metrics, summary);
  ASSERT_EQ(charts.size(), 4);
  EXPECT_EQ(charts[0].subtitle, "mean over the examples since the previous point");
  EXPECT_EQ(charts[0].series[0].figure, "0.5 in epoch 3");
  EXPECT_EQ(charts[0].series[1].figure, "1 in epoch 3");
  for (const auto& [chart, figure] : {std::pair(1, "80"), {2, "1.5"}, {3, "12.50%"}}) {
    EXPECT_EQ(charts[chart].series[0].name, "whole run");
    EXPECT_EQ(charts[chart].series[0].figure, figure);
  }
  EXPECT_EQ(ReportCharts(metrics)[1].series[0].name, "newest point") << "the run is not over";
}

Metrics TwoEpochs() {
  Metrics metrics;
  metrics.train = {
      {.epoch = 1, .step = 10, .seconds = 1, .over_examples = 100, .loss = 2, .samples_per_second = 100},
      {.epoch = 1, .step = 20, .seconds = 2, .over_examples = 100, .loss = 1, .samples_per_second = 300},
      {.epoch = 2, .step = 30, .seconds = 4, .over_examples = 100, .loss = 0.5, .samples_per_second = 250}};
  metrics.test = {{.epoch = 1, .step = 20, .seconds = 2.5, .loss = 1.25, .accuracy = 0.875},
                  {.epoch = 2, .step = 30, .seconds = 4.5, .loss = 0.75, .accuracy = 0.5}};
  return metrics;
}

TEST(EpochTableTest, RowHoldsTheMeansOfItsEpochAndItsOwnTime) {
  const std::vector<EpochRow> rows = EpochRows(TwoEpochs());
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0].epoch, 1);
  EXPECT_EQ(rows[0].step, 20);
  EXPECT_EQ(rows[0].train_loss, 1.5);
  EXPECT_EQ(rows[0].samples_per_second, 200);
  EXPECT_EQ(rows[0].test_accuracy, 0.875);
  EXPECT_EQ(rows[0].seconds, 2.5);
  EXPECT_EQ(rows[1].seconds, 2);
}

TEST(EpochTableTest, AnEpochsOwnLineCountsMoreThanItsTrainingLines) {
  Metrics metrics = TwoEpochs();
  metrics.epochs = {{.epoch = 1, .step = 21, .seconds = 3, .train_loss = 1.75, .samples_per_second = 70}};
  const std::vector<EpochRow> rows = EpochRows(metrics);
  EXPECT_EQ(rows[0].train_loss, 1.75);
  EXPECT_EQ(rows[0].samples_per_second, 70);
  EXPECT_EQ(rows[0].step, 21);
  EXPECT_EQ(rows[0].seconds, 3);
  EXPECT_EQ(rows[1].seconds, 1.5);
}

TEST(EpochTableTest, MeansOfAnUnfinishedEpochAreOverExamplesNotLines) {
  Metrics metrics = TwoEpochs();
  metrics.train[1].over_examples = 300;
  EXPECT_EQ(EpochRows(metrics)[0].train_loss, 1.25);
}

TEST(EpochTableTest, EpochWithoutTrainingLinesHasNoMeans) {
  Metrics metrics;
  metrics.test = {{.epoch = 3, .step = 5, .loss = 0.5}};
  const std::vector<EpochRow> rows = EpochRows(metrics);
  ASSERT_EQ(rows.size(), 1);
  EXPECT_FALSE(rows[0].train_loss.has_value());
  EXPECT_THAT(RenderEpochTable(rows), HasSubstr("<td>–</td>"));
}

TEST(EpochTableTest, MarksTheBestAccuracy) {
  const std::string html = RenderEpochTable(EpochRows(TwoEpochs()));
  EXPECT_THAT(html, HasSubstr("<tr class=\"best\"><td>1</td><td>20</td><td>1.5</td><td>1.25</td>"
                              "<td><span class=\"star\" title=\"best\">★</span>87.50%</td><td>200</td>"));
  EXPECT_THAT(html, HasSubstr("<tr><td>2</td><td>30</td><td>0.5</td><td>0.75</td><td>50.00%</td>"));
}

TEST(EpochTableTest, MarksTheBestAucIfThereIsOne) {
  Metrics metrics = TwoEpochs();
  metrics.test[0].auc = 0.75;
  metrics.test[1].auc = 0.78434;
  const std::string html = RenderEpochTable(EpochRows(metrics));
  EXPECT_THAT(html, HasSubstr("<th>Test accuracy</th><th>Test AUC</th>"));
  EXPECT_THAT(html, HasSubstr("<tr><td>1</td><td>20</td><td>1.5</td><td>1.25</td><td>87.50%</td><td>0.7500</td>"));
  EXPECT_THAT(html, HasSubstr("<tr class=\"best\"><td>2</td><td>30</td><td>0.5</td><td>0.75</td><td>50.00%</td>"
                              "<td><span class=\"star\" title=\"best\">★</span>0.7843</td>"));
}

TEST(EpochTableTest, MetricsTellTheFiguresOfClicks) {
  Metrics metrics = TwoEpochs();
  EXPECT_EQ(SummarizeMetrics(metrics).test_auc, std::nullopt);
  EXPECT_EQ(SummarizeMetrics(metrics).log_loss, std::nullopt);
  metrics.test[1] = {.epoch = 2, .step = 30, .loss = 0.75, .auc = 0.8125, .log_loss = 0.75, .calibration = 1.25};
  const Summary summary = SummarizeMetrics(metrics);
  EXPECT_EQ(summary.test_auc, 0.8125);
  EXPECT_EQ(summary.log_loss, 0.75);
  EXPECT_EQ(summary.calibration, 1.25);
}

TEST(EpochTableTest, WithoutATestSetThereAreNoTestColumns) {
  Metrics metrics = TwoEpochs();
  metrics.test.clear();
  const std::string html = RenderEpochTable(EpochRows(metrics));
  EXPECT_THAT(html, Not(HasSubstr("Test loss")));
  EXPECT_THAT(html, Not(HasSubstr("Test accuracy")));
  EXPECT_THAT(html, HasSubstr("Train loss"));
}

TEST(EpochTableTest, WithoutRowsThereIsNoTable) { EXPECT_EQ(RenderEpochTable({}), ""); }

Summary Example() {
  return {.codec = "int8",
          .value_codec = "fp32",
          .max_staleness = 5,
          .mean_staleness = 1.5,
          .staleness = {{2, 4, 1, 1}, 1.5, 5},
          .dropped = 7,
          .wait_share = 0.125,
          .wait_microseconds = {{30, 0, 0, 0, 0, 6, 2, 2}, 11, 100},
          .bytes_sent = 3 << 20,
          .bytes_received = 12 << 20,
          .bytes_sent_per_step = 1536,
          .bytes_received_per_step = 6144};
}

TEST(ExchangeCardTest, TellsBytesWaitsAndStaleness) {
  const std::string html = RenderExchangeCard(Example());
  EXPECT_THAT(html, HasSubstr("<td>Gradients</td><td>3.0 MiB as int8</td>"));
  EXPECT_THAT(html, HasSubstr("<td>Values</td><td>12.0 MiB as fp32</td>"));
  EXPECT_THAT(html, HasSubstr("<td>A worker received</td><td>6.0 KiB per step</td>"));
  EXPECT_THAT(html, HasSubstr("<td>Workers waited for servers</td><td>12.50% of their time</td>"));
  EXPECT_THAT(html, HasSubstr("<td>Staleness of a push</td><td>mean 1.5, maximum 5 updates</td>"));
  EXPECT_THAT(html, HasSubstr("<td>Late gradients dropped</td><td>7</td>"));
}

TEST(ExchangeCardTest, TellsOfSkippedBatchesWhereTheLossIsScaled) {
  Summary summary = Example();
  EXPECT_THAT(RenderExchangeCard(summary), Not(HasSubstr("loss scale")));
  summary.skipped_steps = 3;
  summary.loss_scale = 8192;
  EXPECT_THAT(RenderExchangeCard(summary),
              HasSubstr("<td>Batches skipped</td><td>3 that overflowed; loss scale 8,192 of worker 0</td>"));
}

// Both may be: a pull takes time for transfer and update even if no other worker is waited for.
TEST(ExchangeCardTest, WaitingForServersIsNotWaitingForOtherWorkers) {
  Summary summary = Example();
  EXPECT_THAT(RenderExchangeCard(summary), HasSubstr("<td>Pulls held back for other workers</td><td>25.00%</td>"));
  EXPECT_THAT(RenderExchangeCard(summary), HasSubstr("<td>Others waited longest</td><td>nobody</td>"));
  summary.seconds = 50;
  summary.caused_wait_seconds = {0.5, 0, 4, 1};
  EXPECT_THAT(RenderExchangeCard(summary),
              HasSubstr("<td>Others waited longest</td><td>4.0 s for worker 2 (8.00% of the run)</td>"));
  summary.wait_microseconds = {{5707}, 0, 0};
  const std::string html = RenderExchangeCard(summary);
  EXPECT_THAT(html, HasSubstr("<td>Workers waited for servers</td><td>12.50% of their time</td>"));
  EXPECT_THAT(html, HasSubstr("<td>Pulls held back for other workers</td><td>none of 5,707</td>"));
  EXPECT_THAT(html, Not(HasSubstr("Pull waits")));
}

TEST(ExchangeCardTest, SaysSinceWhenAServerCounts) {
  Summary summary = Example();
  summary.seconds = summary.server_seconds = 60;
  EXPECT_THAT(RenderExchangeCard(summary), Not(HasSubstr("since a server")));
  summary.server_seconds = 12;
  EXPECT_THAT(RenderExchangeCard(summary),
              HasSubstr("updates, per slice; the last 12 s, since a server started again"));
}

TEST(ExchangeCardTest, ABarsLengthIsItsShareOfTheLongest) {
  const std::string html = RenderExchangeCard(Example());
  EXPECT_THAT(html, HasSubstr("<th>0</th><td><i style=\"width:50.0%\"></i></td><td>25.00%</td>"));
  EXPECT_THAT(html, HasSubstr("<th>1</th><td><i style=\"width:100.0%\"></i></td><td>50.00%</td>"));
  EXPECT_THAT(html, HasSubstr("<th>2–3</th><td><i style=\"width:25.0%\"></i></td><td>12.50%</td>"));
  EXPECT_THAT(html, HasSubstr("<th>4–7</th>"));
}

TEST(ExchangeCardTest, WaitsBeginWithTheFirstThatThereWas) {
  const std::string html = RenderExchangeCard(Example());
  EXPECT_THAT(html, HasSubstr("<th>none</th><td><i style=\"width:100.0%\"></i></td><td>75.00%</td>"));
  EXPECT_THAT(html, Not(HasSubstr("under 16 µs")));
  EXPECT_THAT(html, HasSubstr("<th>under 64 µs</th><td><i style=\"width:26.7%\"></i></td><td>20.00%</td>"));
  EXPECT_THAT(html, HasSubstr("<th>under 256 µs</th>"));
  EXPECT_THAT(html, HasSubstr("mean 11 µs, maximum 100 µs"));
}

TEST(ExchangeCardTest, SyncRunHasNoBarsOfStaleness) {
  Summary summary = Example();
  summary.staleness = {{8}, 0, 0};
  EXPECT_THAT(RenderExchangeCard(summary), Not(HasSubstr("<th>0</th>")));
}

TEST(ExchangeCardTest, IsEmptyWhereTheServersSaidNothing) { EXPECT_EQ(RenderExchangeCard(Summary()), ""); }

}  // namespace
}  // namespace ballast
