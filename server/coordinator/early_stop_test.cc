// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "server/coordinator/progress_tracker.h"

namespace ballast {
namespace {

v1::EarlyStopping Options(v1::TestMetric metric, uint32_t epochs, double min_change = 0) {
  v1::EarlyStopping options;
  options.set_metric(metric);
  options.set_epochs(epochs);
  options.set_min_change(min_change);
  return options;
}

// The value is loss, accuracy and AUC.
v1::Evaluation Epoch(uint32_t epoch, double value) {
  v1::Evaluation evaluation;
  evaluation.set_epoch(epoch);
  evaluation.set_loss(value);
  evaluation.set_accuracy(value);
  evaluation.set_auc(value);
  return evaluation;
}

TEST(EarlyStopTest, StopsAfterThatManyEpochsWithoutAnImprovement) {
  const struct {
    const char* what;
    v1::EarlyStopping options;
    std::vector<double> values;
    // The epoch after which it stops; 0: none.
    uint32_t stops;
  } cases[] = {
      {"a loss that falls", Options(v1::TEST_LOSS, 1), {4, 3, 2}, 0},
      {"a loss that rises", Options(v1::TEST_LOSS, 2), {4, 5, 6}, 3},
      {"a loss that stays", Options(v1::TEST_LOSS, 1), {4, 4}, 2},
      {"an improvement in between", Options(v1::TEST_LOSS, 2), {4, 5, 3, 4, 5}, 5},
      {"an accuracy that rises", Options(v1::TEST_ACCURACY, 1), {0.4, 0.5, 0.6}, 0},
      {"an accuracy that falls", Options(v1::TEST_ACCURACY, 1), {0.4, 0.3}, 2},
      {"an AUC that rises", Options(v1::TEST_AUC, 1), {0.6, 0.7, 0.75}, 0},
      {"an AUC that falls", Options(v1::TEST_AUC, 2), {0.7, 0.75, 0.7, 0.6}, 4},
      {"changes that are too small", Options(v1::TEST_LOSS, 2, 0.5), {4, 3.75, 3.625}, 3},
      {"changes that are large enough", Options(v1::TEST_LOSS, 1, 0.5), {4, 3.5, 3}, 0},
      {"a metric of no name", Options(v1::TEST_METRIC_UNSPECIFIED, 1), {4, 5}, 2},
      {"no number", Options(v1::TEST_LOSS, 2), {NAN, NAN}, 2},
      {"no number at first", Options(v1::TEST_LOSS, 2), {NAN, 5, 6}, 0},
  };
  for (const auto& c : cases) {
    EarlyStop stop(c.options);
    uint32_t stopped = 0, epoch = 0;
    for (double value : c.values) {
      stop.Evaluated(Epoch(++epoch, value));
      if (stop.stops() && stopped == 0) stopped = epoch;
    }
    EXPECT_EQ(stopped, c.stops) << c.what;
  }
}

TEST(EarlyStopTest, AnEpochCountsOnce) {
  EarlyStop stop(Options(v1::TEST_LOSS, 2));
  for (int retry = 0; retry < 3; ++retry) stop.Evaluated(Epoch(1, 4));
  stop.Evaluated(Epoch(2, 5));
  stop.Evaluated(Epoch(2, 5));
  EXPECT_FALSE(stop.stops());
}

TEST(EarlyStopTest, GoesOnFromItsState) {
  EarlyStop before(Options(v1::TEST_LOSS, 2));
  before.Evaluated(Epoch(1, 4));
  before.Evaluated(Epoch(2, 5));
  EarlyStop after(Options(v1::TEST_LOSS, 2));
  after.Restore(before.state());
  after.Evaluated(Epoch(3, 4.5));
  EXPECT_TRUE(after.stops());
  EXPECT_EQ(after.Reason(), "the test loss has not improved for 2 epochs; its best was 4 after epoch 1");
}

TEST(EarlyStopTest, NamesTheMetricThatDidNotImprove) {
  EarlyStop stop(Options(v1::TEST_AUC, 1));
  stop.Evaluated(Epoch(1, 0.75));
  stop.Evaluated(Epoch(2, 0.7));
  EXPECT_EQ(stop.Reason(), "the test AUC has not improved for 1 epoch; its best was 0.75 after epoch 1");
}

}  // namespace
}  // namespace ballast
