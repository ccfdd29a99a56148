// SPDX-License-Identifier: Apache-2.0
// Tests a model on the CPU device that exchanges gradients and values with a test server.
#include "worker/training/parameter_exchange.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/training/exchange_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ParameterExchangeTest : public ExchangeFixture<Device> {
 protected:
  ParameterExchangeTest() : ExchangeFixture(CreateCpuDevice(1)) {}

  // Trains from weights of 1 and waits for all pushes.
  absl::Status Train(ParameterExchange& exchange, float x, float y, bool last_of_step = true) {
    SetWeights();
    absl::Status status = ExchangeFixture::Train(exchange, x, y, last_of_step).status();
    if (status.ok() && last_of_step) status = exchange.AwaitAll();
    return status;
  }
};

TEST_F(ParameterExchangeTest, PushesWhatABatchGave) {
  const auto exchange = Exchange({});
  ASSERT_TRUE(Train(*exchange, 3, 1).ok());
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
  EXPECT_EQ(shard_.last_header().examples(), 1);
  EXPECT_EQ(exchange->loss_scale(), 1);
  EXPECT_EQ(exchange->TakeStats().loss_scale, std::nullopt);
}

TEST_F(ParameterExchangeTest, TheSecondLayersGradientWaitsForALargerFirstOne) {
  const auto postpones = [&](int second_units, bool defer) {
    const v1::Model config = ParseModel(absl::StrCat(
        "layers { dense { units: 256 } } layers { dense { units: ", second_units,
        " } } layers { dense { units: 300 } } layers { dense { units: 1 } } loss { mean_squared_error {} }"));
    const std::unique_ptr<Model> model = Model::Create(config, 600, 1, 4, device_.get()).value();
    ParameterExchange exchange(model.get(), client_.get(), {.defer_gradients = defer, .interrupted = &interrupted_});
    std::vector<bool> of_layers;
    for (size_t layer = 0; layer < 4; ++layer) of_layers.push_back(exchange.Postpones(layer));
    return of_layers;
  };
  EXPECT_THAT(postpones(200, true), ElementsAre(false, true, false, false));
  // Forward of the first layer would not take long enough for the round trip of the second.
  EXPECT_THAT(postpones(700, true), ElementsAre(false, false, false, false));
  EXPECT_THAT(postpones(200, false), ElementsAre(false, false, false, false));
}

TEST_F(ParameterExchangeTest, AMeasuredStepHasTheNormOfItsGradientAndItsUpdate) {
  const auto exchange = Exchange({.measure_interval = absl::ZeroDuration()});
  // Both gradients are 12, and both weights change from 1 to the server's 0 - 12.
  ASSERT_TRUE(Train(*exchange, 3, 1).ok());
  const ExchangeStats stats = exchange->TakeStats();
  EXPECT_DOUBLE_EQ(stats.figures.gradient_norm.value(), 12 * std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(stats.figures.update_ratio.value(), 13);
  // They stay until another step is measured.
  EXPECT_TRUE(exchange->TakeStats().figures.gradient_norm.has_value());
}

TEST_F(ParameterExchangeTest, AMeasuredStepOfSeveralBatchesHasTheNormOfTheirMean) {
  const auto exchange = Exchange({.accumulate_batches = 2, .measure_interval = absl::ZeroDuration()});
  ASSERT_TRUE(Train(*exchange, 3, 1, /*last_of_step=*/false).ok());
  ASSERT_TRUE(Train(*exchange, 1, 0).ok());
  // The gradients are 12 and 2.
  EXPECT_DOUBLE_EQ(exchange->TakeStats().figures.gradient_norm.value(), 7 * std::sqrt(2.0));
}

TEST_F(ParameterExchangeTest, StepsAreNotMeasuredUnlessAsked) {
  const auto exchange = Exchange({});
  ASSERT_TRUE(Train(*exchange, 3, 1).ok());
  EXPECT_FALSE(exchange->TakeStats().figures.gradient_norm.has_value());
}

TEST_F(ParameterExchangeTest, ABatchThatOverflowsHasNoGradientToMeasure) {
  const auto exchange = Exchange({.scale_loss = true, .measure_interval = absl::ZeroDuration()});
  ASSERT_TRUE(Train(*exchange, 1e17, 0).ok());
  EXPECT_FALSE(exchange->TakeStats().figures.gradient_norm.has_value());
}

TEST_F(ParameterExchangeTest, ScaledLossGivesTheSameGradients) {
  const auto exchange = Exchange({.scale_loss = true});
  EXPECT_EQ(exchange->loss_scale(), 65536);
  ASSERT_TRUE(Train(*exchange, 3, 1).ok());
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
  // The view points to the model's own memory.
  EXPECT_EQ(model_->HostGradient(0)[0], 12);
  const ExchangeStats stats = exchange->TakeStats();
  EXPECT_EQ(stats.skipped, 0);
  EXPECT_EQ(stats.loss_scale, 65536);
}

// 2 (x - y) x is 2e34 and fits into a float; 65536 times that does not.
TEST_F(ParameterExchangeTest, BatchThatOverflowsIsPushedWithoutExamplesAndHalvesTheScale) {
  const auto exchange = Exchange({.scale_loss = true});
  ASSERT_TRUE(Train(*exchange, 1e17, 0).ok());
  EXPECT_THAT(Pushed(), ElementsAre(0, 0));
  EXPECT_EQ(shard_.sequences().size(), 2);
  EXPECT_EQ(shard_.last_header().examples(), 0);
  EXPECT_EQ(shard_.last_header().step(), 0);
  EXPECT_EQ(exchange->loss_scale(), 32768);
  const ExchangeStats stats = exchange->TakeStats();
  EXPECT_EQ(stats.steps, 1);
  EXPECT_EQ(stats.skipped, 1);
  EXPECT_EQ(stats.loss_scale, 32768);
  EXPECT_EQ(exchange->TakeStats().skipped, 0);
}

TEST_F(ParameterExchangeTest, TheNextBatchAfterAnOverflowCounts) {
  const auto exchange = Exchange({.scale_loss = true});
  ASSERT_TRUE(Train(*exchange, 1e17, 0).ok());
  ASSERT_TRUE(Train(*exchange, 3, 1).ok());
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
  EXPECT_EQ(shard_.last_header().examples(), 1);
  EXPECT_EQ(shard_.last_header().step(), 1);
}

// The second layer's gradient alone is finite, but it is not pushed, either.
TEST_F(ParameterExchangeTest, OverflowInOneLayerSkipsAll) {
  const auto exchange = Exchange({.scale_loss = true});
  ASSERT_TRUE(model_->SetParameter(0, {1e-19f}).ok());
  ASSERT_TRUE(model_->SetParameter(1, {1}).ok());
  exchange->BeginBatch(0, 1, true);
  // The gradients are 2 (x w1 - y) x w1 = -2e17 of w2 and 2 (x w1 - y) x = -2e36 of w1, before scaling.
  ASSERT_TRUE(model_
                  ->Train({.features = {1e19f}, .labels = {1e17f}, .examples = 1, .loss_scale = exchange->loss_scale()},
                          *exchange)
                  .ok());
  ASSERT_TRUE(exchange->AwaitAll().ok());
  EXPECT_THAT(Pushed(), ElementsAre(0, 0));
  EXPECT_TRUE(std::isfinite(model_->HostGradient(1)[0]));
  EXPECT_FALSE(std::isfinite(model_->HostGradient(0)[0]));
}

TEST_F(ParameterExchangeTest, OverflowOfOneAccumulatedBatchLeavesTheOthersMean) {
  const auto exchange = Exchange({.accumulate_batches = 3, .scale_loss = true});
  ASSERT_TRUE(Train(*exchange, 3, 1, /*last_of_step=*/false).ok());
  ASSERT_TRUE(Train(*exchange, 1e17, 0, /*last_of_step=*/false).ok());
  ASSERT_TRUE(Train(*exchange, 1, 0).ok());
  EXPECT_THAT(Pushed(), ElementsAre(7, 7));
  EXPECT_EQ(shard_.last_header().examples(), 2);
  EXPECT_EQ(exchange->TakeStats().skipped, 1);
}

TEST_F(ParameterExchangeTest, LastAccumulatedBatchMayOverflow) {
  const auto exchange = Exchange({.accumulate_batches = 2, .scale_loss = true});
  ASSERT_TRUE(Train(*exchange, 3, 1, /*last_of_step=*/false).ok());
  ASSERT_TRUE(Train(*exchange, 1e17, 0).ok());
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
  EXPECT_EQ(shard_.last_header().examples(), 1);
}

TEST_F(ParameterExchangeTest, OverflowAtTheLeastScaleEndsTheJobWithTheCause) {
  const auto exchange = Exchange({.scale_loss = true});
  absl::Status status;
  int skipped = 0;
  // 2 (x - y) x overflows, even times 2^-14; the loss (x - y)^2 does not.
  while (skipped < 100) {
    ASSERT_TRUE(model_->SetParameter(0, {1e-12f}).ok());
    ASSERT_TRUE(model_->SetParameter(1, {1}).ok());
    exchange->BeginBatch(step_++, 1, true);
    status = model_
                 ->Train({.features = {1e30f}, .labels = {0}, .examples = 1, .loss_scale = exchange->loss_scale()},
                         *exchange)
                 .status();
    if (status.ok()) status = exchange->AwaitAll();
    if (!status.ok()) break;
    ++skipped;
  }
  EXPECT_EQ(skipped, 30);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("gradients are not finite at step 30, even at loss scale 6.10352e-05: training has diverged"));
}

TEST_F(ParameterExchangeTest, TimelineShowsEachLayersPushAndPull) {
  TimelineRecorder timeline(StepRange{1, 1});
  timeline.BeginStep(1);
  const auto exchange = Exchange({.timeline = &timeline});
  ASSERT_TRUE(Train(*exchange, 3, 1).ok());
  const TimelineRecorder::Recording recording = timeline.Copy();
  std::vector<std::string> spans;
  for (const TimelineSpan& span : recording.spans) {
    if (span.row == TimelineRow::kWait) continue;
    spans.push_back(absl::StrCat(TimelineRowName(span.row), " ", recording.names[span.name]));
    EXPECT_LE(span.begin, span.end);
    EXPECT_GT(span.bytes, 0);
    EXPECT_EQ(span.step, 1);
  }
  EXPECT_THAT(spans, ElementsAre("push dense1", "pull dense1", "push dense2", "pull dense2"));
}

TEST_F(ParameterExchangeTest, StepsOutsideTheTimelineLeaveNoSpans) {
  TimelineRecorder timeline(StepRange{1, 1});
  timeline.BeginStep(2);
  const auto exchange = Exchange({.timeline = &timeline});
  ASSERT_TRUE(Train(*exchange, 3, 1).ok());
  EXPECT_THAT(timeline.Copy().spans, IsEmpty());
}

}  // namespace
}  // namespace ballast
