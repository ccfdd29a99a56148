// SPDX-License-Identifier: Apache-2.0
// Tests the order of waits of a model on a device that runs concurrently with the host and has its own memory.
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/testing/queued_device.h"
#include "worker/training/exchange_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Operations of a batch: two products, the loss, two products of the second layer's backward, one of the first's.
constexpr uint64_t kForward = 2, kLoss = 1, kSecondLayersBackward = 2;

class OverlapTest : public ExchangeFixture<QueuedDevice> {
 protected:
  OverlapTest() : ExchangeFixture(CreateQueuedDevice()) { Exchange({}); }
  ~OverlapTest() override { device_->AllowAll(); }
};

TEST_F(OverlapTest, PushesWhatABatchGave) {
  Step(3, 1);
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
  EXPECT_EQ(exchange_->TakeStats().steps, 1u);
}

// The next batch uses the values from the push's response: -12 and -12, so the outputs are 144.
TEST_F(OverlapTest, ForwardUsesTheValuesThatCame) {
  ASSERT_TRUE(Train(3, 1).ok());
  EXPECT_EQ(Train(1, 0)->loss_sum, 144 * 144);
  ASSERT_TRUE(exchange_->AwaitAll().ok());
}

TEST_F(OverlapTest, LayerIsPushedWhileTheOneBeforeItStillComputes) {
  device_->Allow(kForward + kLoss + kSecondLayersBackward);
  ASSERT_TRUE(Train(3, 1).ok());
  EXPECT_TRUE(shard_.AwaitPushes(1));
  EXPECT_THAT(Pushed(), ElementsAre(0, 12));
  device_->AllowAll();
  ASSERT_TRUE(exchange_->AwaitAll().ok());
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
}

// The second layer has 4 bytes of gradients.
TEST_F(OverlapTest, SmallLayersArePushedTogetherAfterTheFirstOne) {
  Exchange({.merge_bytes = 4});
  device_->Allow(kForward + kLoss + kSecondLayersBackward);
  ASSERT_TRUE(Train(3, 1).ok());
  EXPECT_THAT(shard_.sequences(), IsEmpty());
  device_->AllowAll();
  ASSERT_TRUE(exchange_->AwaitAll().ok());
  EXPECT_EQ(shard_.sequences().size(), 1u);
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
  EXPECT_EQ(Train(1, 0)->loss_sum, 144 * 144);
  ASSERT_TRUE(exchange_->AwaitAll().ok());
}

TEST_F(OverlapTest, LayersBeyondTheLimitArePushedAlone) {
  Exchange({.merge_bytes = 3});
  Step(3, 1);
  EXPECT_EQ(shard_.sequences().size(), 2u);
}

TEST_F(OverlapTest, ScaledGradientsOfSmallLayersArePushedTogether) {
  Exchange({.scale_loss = true, .merge_bytes = 4});
  Step(3, 1);
  EXPECT_EQ(shard_.sequences().size(), 1u);
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
}

TEST_F(OverlapTest, SmallLayersAccumulateTogether) {
  Exchange({.accumulate_batches = 2, .merge_bytes = 4});
  ASSERT_TRUE(Train(3, 1, /*last_of_step=*/false).ok());
  Step(1, 0);
  EXPECT_EQ(shard_.sequences().size(), 1u);
  EXPECT_THAT(Pushed(), ElementsAre(7, 7));
}

// Train has issued the last product before even the first one has run.
TEST_F(OverlapTest, BackwardIsIssuedBeforeTheLossIsKnown) {
  device_->Allow(0);
  const uint64_t issued = device_->issued();
  absl::StatusOr<BatchResult> result;
  std::thread training([&] { result = Train(3, 1); });
  ASSERT_TRUE(device_->AwaitIssued(issued + 6));
  EXPECT_THAT(shard_.sequences(), IsEmpty());
  device_->AllowAll();
  training.join();
  EXPECT_EQ(result->loss_sum, 4);
  EXPECT_TRUE(exchange_->AwaitAll().ok());
}

// The next batch's features are uploaded and wait for the values while this batch's backward still runs.
TEST_F(OverlapTest, NextBatchComesUpWhileBackwardComputes) {
  timeline_.BeginStep(1);
  model_->Record(&timeline_);
  device_->Allow(kForward + kLoss + kSecondLayersBackward);
  ASSERT_TRUE(Train(3, 1).ok());
  // The first layer is not pushed yet, so the interruption comes while the batch waits for its values.
  interrupted_ = true;
  EXPECT_EQ(Train(3, 1).status().code(), absl::StatusCode::kCancelled);
  const TimelineRecorder::Recording recording = timeline_.Copy();
  std::vector<std::string> uploads;
  for (const TimelineSpan& span : recording.spans) {
    if (recording.names[span.name] == "upload batch") uploads.push_back(recording.names[span.name]);
  }
  EXPECT_EQ(uploads.size(), 2u);
}

TEST_F(OverlapTest, LossThatIsNotFiniteIsNotPushed) {
  const absl::Status status = Train(1e30f, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("the loss is inf at step 0: training has diverged. The usual cause is too high a learning rate; "));
  EXPECT_EQ(exchange_->AwaitAll().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(shard_.sequences(), IsEmpty());
}

TEST_F(OverlapTest, ScaledLossThatIsNotFiniteIsNotPushed) {
  Exchange({.scale_loss = true});
  const absl::Status status = Train(1e30f, 0).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("the loss is inf at step 0: training has diverged"));
  EXPECT_THAT(shard_.sequences(), IsEmpty());
}

TEST_F(OverlapTest, ScaledLossGivesTheSameGradients) {
  Exchange({.scale_loss = true});
  Step(3, 1);
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
}

TEST_F(OverlapTest, OverflowIsPushedWithoutExamples) {
  Exchange({.scale_loss = true});
  Step(1e17, 0);
  EXPECT_THAT(Pushed(), ElementsAre(0, 0));
  EXPECT_EQ(shard_.last_header().examples(), 0u);
  EXPECT_EQ(exchange_->TakeStats().skipped, 1u);
}

// (12 + 2) / 2.
TEST_F(OverlapTest, AccumulatedBatchesPushTheirMean) {
  Exchange({.accumulate_batches = 2});
  ASSERT_TRUE(Train(3, 1, /*last_of_step=*/false).ok());
  EXPECT_THAT(shard_.sequences(), IsEmpty());
  Step(1, 0);
  EXPECT_THAT(Pushed(), ElementsAre(7, 7));
  EXPECT_EQ(shard_.last_header().examples(), 2u);
}

// The exchange's copies of the weights are the pulled 1; a local step makes each 1 - 0.125 * 12 = -0.5, so the second
// batch's output is 0.25.
TEST_F(OverlapTest, LocalStepsComputeFromTheirOwnWeights) {
  // The server holds 0 minus the pushed gradients.
  const std::vector<float> minus_one = {-1};
  ASSERT_TRUE(client_->Push(0, 1, {{0, minus_one}, {1, minus_one}}).Get().ok());
  Exchange({.local_learning_rate = 0.125});
  ASSERT_TRUE(exchange_->PullAll(0).ok());
  ASSERT_TRUE(Train(3, 1, /*last_of_step=*/false).ok());
  const absl::StatusOr<BatchResult> result = Train(1, 0);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->loss_sum, 0.0625);
  ASSERT_TRUE(exchange_->AwaitAll().ok());
}

TEST_F(OverlapTest, EmptyBatchTakesPart) {
  ASSERT_TRUE(Train(3, 1).ok());
  exchange_->BeginBatch(step_, 0, true);
  ASSERT_TRUE(exchange_->PassEmptyBatch().ok());
  ASSERT_TRUE(exchange_->AwaitAll().ok());
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
  EXPECT_EQ(shard_.last_header().examples(), 0u);
  EXPECT_EQ(shard_.sequences().size(), 4u);
}

TEST_F(OverlapTest, DeviceThatFailsInTheMiddleEndsTheBatchWithItsError) {
  device_->Allow(kForward + kLoss + kSecondLayersBackward);
  ASSERT_TRUE(Train(3, 1).ok());
  ASSERT_TRUE(shard_.AwaitPushes(1));
  device_->Fail(absl::UnavailableError("the GPU is lost"));
  EXPECT_EQ(exchange_->AwaitAll(), absl::UnavailableError("the GPU is lost"));
  EXPECT_EQ(exchange_->BeforeForward(0), absl::UnavailableError("the GPU is lost"));
  EXPECT_EQ(shard_.sequences().size(), 1u);
}

TEST_F(OverlapTest, ServerThatFailsEndsTheNextHookWithItsError) {
  shard_.FailNext(1, grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no such job"));
  // The response may arrive while the batch is still being issued.
  absl::Status status = Train(3, 1).status();
  if (status.ok()) status = exchange_->AwaitAll();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no such job"));
}

TEST_F(OverlapTest, InterruptedWaitForServersEndsAndFetchesTheNewestWeights) {
  shard_.Block();
  ASSERT_TRUE(Train(3, 1).ok());
  ASSERT_TRUE(shard_.AwaitBlocked(1));
  interrupted_ = true;
  EXPECT_EQ(exchange_->AwaitAll(), absl::CancelledError("interrupted while waiting for servers"));
  shard_.Release();
  ASSERT_TRUE(exchange_->AbandonAndPull().ok());
  EXPECT_EQ(model_->Evaluate({.features = {1}, .labels = {0}, .examples = 1})->loss_sum, 144 * 144);
}

TEST_F(OverlapTest, ExchangeThatEndsWithCopiesQueuedEnds) {
  device_->Allow(kForward + kLoss);
  ASSERT_TRUE(Train(3, 1).ok());
  device_->Fail(absl::UnavailableError("the GPU is lost"));
  EndCalls();
  exchange_.reset();
  EXPECT_THAT(shard_.sequences(), IsEmpty());
}

// Downloads: the loss, then the second layer's gradient, while the first layer's is not computed yet.
TEST_F(OverlapTest, ScaledGradientsComeDownWhileBackwardComputesAndAreNotPushedYet) {
  Exchange({.scale_loss = true});
  constexpr uint64_t kScaleLoss = 1, kUnscale = 1;
  const uint64_t before = device_->downloaded();
  device_->Allow(kForward + kLoss + kScaleLoss + kSecondLayersBackward + kUnscale);
  absl::StatusOr<BatchResult> result;
  std::thread training([&] { result = Train(3, 1); });
  EXPECT_TRUE(device_->AwaitDownloaded(before + 8 + 4));
  EXPECT_THAT(shard_.sequences(), IsEmpty());
  device_->AllowAll();
  training.join();
  EXPECT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(exchange_->AwaitAll().ok());
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
}

// A loss and a flag are downloaded, too.
TEST_F(OverlapTest, OfScaledGradientsOneFloatTellsWhetherTheyAreFinite) {
  Exchange({.scale_loss = true});
  const uint64_t before = device_->downloaded();
  Step(3, 1);
  // Both the pipeline and the model read the loss.
  EXPECT_EQ(device_->downloaded() - before, 2 * 8 + 2 * 4 + 4u);
}

TEST_F(OverlapTest, BatchAfterAnOverflowCounts) {
  Exchange({.scale_loss = true});
  Step(1e17, 0);
  EXPECT_EQ(exchange_->loss_scale(), 32768);
  SetWeights();
  Step(3, 1);
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
  EXPECT_EQ(shard_.last_header().examples(), 1u);
  EXPECT_EQ(exchange_->TakeStats().skipped, 1u);
}

TEST_F(OverlapTest, OverflowOfOneAccumulatedBatchLeavesTheOthersMean) {
  Exchange({.accumulate_batches = 3, .scale_loss = true});
  ASSERT_TRUE(Train(3, 1, /*last_of_step=*/false).ok());
  ASSERT_TRUE(Train(1e17, 0, /*last_of_step=*/false).ok());
  Step(1, 0);
  EXPECT_THAT(Pushed(), ElementsAre(7, 7));
  EXPECT_EQ(shard_.last_header().examples(), 2u);
}

// The device rounds to bf16 and back.
class HalfOverlapTest : public ExchangeFixture<QueuedDevice> {
 protected:
  HalfOverlapTest() : ExchangeFixture(CreateQueuedDevice(), v1::ENCODING_BF16) { Exchange({}); }
  ~HalfOverlapTest() override { device_->AllowAll(); }
};

// 2 (x - y) x = 2.0625 * 1.03125 = 2.126953125, which bf16 rounds to 2.125.
TEST_F(HalfOverlapTest, PushesWhatABatchGaveRoundedByTheDevice) {
  Step(1.03125f, 0);
  EXPECT_THAT(Pushed(), ElementsAre(2.125, 2.125));
  EXPECT_EQ(shard_.payload_bytes(), 4u);
}

TEST_F(HalfOverlapTest, ForwardUsesTheValuesThatCame) {
  ASSERT_TRUE(Train(3, 1).ok());
  EXPECT_EQ(Train(1, 0)->loss_sum, 144 * 144);
  ASSERT_TRUE(exchange_->AwaitAll().ok());
}

TEST_F(HalfOverlapTest, PulledWeightsAreThereForEvaluation) {
  const std::vector<float> minus_three = {-3};
  ASSERT_TRUE(client_->Push(0, 1, {{0, minus_three}, {1, minus_three}}).Get().ok());
  ASSERT_TRUE(exchange_->PullAll(0).ok());
  EXPECT_EQ(model_->Evaluate({.features = {1}, .labels = {0}, .examples = 1})->loss_sum, 81);
}

TEST_F(HalfOverlapTest, LayerIsPushedWhileTheOneBeforeItStillComputes) {
  constexpr uint64_t kRound = 1;
  device_->Allow(kForward + kLoss + kSecondLayersBackward + kRound);
  ASSERT_TRUE(Train(3, 1).ok());
  EXPECT_TRUE(shard_.AwaitPushes(1));
  EXPECT_THAT(Pushed(), ElementsAre(0, 12));
  device_->AllowAll();
  ASSERT_TRUE(exchange_->AwaitAll().ok());
  EXPECT_THAT(Pushed(), ElementsAre(12, 12));
}

TEST_F(HalfOverlapTest, ScaledLossGivesTheSameGradients) {
  Exchange({.scale_loss = true});
  Step(1.03125f, 0);
  EXPECT_THAT(Pushed(), ElementsAre(2.125, 2.125));
}

TEST_F(HalfOverlapTest, OverflowIsPushedWithoutExamples) {
  Exchange({.scale_loss = true});
  Step(1e17, 0);
  EXPECT_THAT(Pushed(), ElementsAre(0, 0));
  EXPECT_EQ(shard_.last_header().examples(), 0u);
  EXPECT_EQ(shard_.payload_bytes(), 0u);
}

TEST_F(HalfOverlapTest, EmptyBatchTakesPart) {
  exchange_->BeginBatch(step_, 0, true);
  ASSERT_TRUE(exchange_->PassEmptyBatch().ok());
  ASSERT_TRUE(exchange_->AwaitAll().ok());
  EXPECT_EQ(shard_.sequences().size(), 2u);
  EXPECT_EQ(shard_.payload_bytes(), 0u);
}

TEST_F(HalfOverlapTest, EncodedGradientsAreNotSummed) {
  Exchange({.accumulate_batches = 2});
  absl::Status status = Train(3, 1, /*last_of_step=*/false).status();
  if (status.ok()) status = exchange_->AwaitAll();
  EXPECT_EQ(status, absl::InternalError("gradient of dense2 is encoded, want floats to sum"));
}

TEST_F(HalfOverlapTest, DeviceThatFailsIsNamed) {
  const uint64_t before = device_->downloaded();
  device_->Allow(kForward + kLoss);
  ASSERT_TRUE(Train(3, 1).ok());
  // Both the model and the pipeline read the loss.
  ASSERT_TRUE(device_->AwaitDownloaded(before + 16));
  device_->Fail(absl::UnavailableError("the GPU is lost"));
  EXPECT_EQ(exchange_->AwaitAll(), absl::UnavailableError("device cpu: the GPU is lost"));
}

}  // namespace
}  // namespace ballast
