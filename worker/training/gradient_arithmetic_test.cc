// SPDX-License-Identifier: Apache-2.0
#include "worker/training/gradient_arithmetic.h"

#include <gmock/gmock.h>

#include "worker/device/testing/queued_device.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GradientAccumulatorTest, IsTheMeanOverAllExamples) {
  GradientAccumulator accumulator;
  accumulator.Add({4, -8}, 1);
  accumulator.Add({0, 4}, 3);
  EXPECT_THAT(accumulator.TakeMean(), ElementsAre(1, 1));
}

TEST(GradientAccumulatorTest, BeginsAnewAfterItWasTaken) {
  GradientAccumulator accumulator;
  accumulator.Add({4, 4}, 2);
  EXPECT_THAT(accumulator.TakeMean(), ElementsAre(4, 4));
  EXPECT_THAT(accumulator.TakeMean(), IsEmpty());
  accumulator.Add({1, 2}, 2);
  EXPECT_THAT(accumulator.TakeMean(), ElementsAre(1, 2));
}

TEST(GradientAccumulatorTest, StepsAgainstTheMeanGradient) {
  GradientAccumulator accumulator;
  float weights[] = {10, 20};
  accumulator.Add({4, -4}, 1);
  accumulator.Add({0, -4}, 1);
  accumulator.Step(0.5, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(9, 22));
}

TEST(GradientAccumulatorTest, ChangeIsWhatAllStepsSubtracted) {
  GradientAccumulator accumulator;
  float weights[] = {10, 20};
  accumulator.Add({2, -2}, 1);
  accumulator.Step(0.5, absl::MakeSpan(weights));
  accumulator.Add({4, 8}, 7);
  accumulator.Step(0.25, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(8, 19));
  EXPECT_THAT(accumulator.TakeChange(weights), ElementsAre(2, 1));
}

TEST(GradientAccumulatorTest, NextChangeCountsFromTheWeightsThatWerePulled) {
  GradientAccumulator accumulator;
  float weights[] = {10};
  accumulator.Add({2}, 1);
  accumulator.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(accumulator.TakeChange(weights), ElementsAre(2));
  weights[0] = 100;
  accumulator.Add({3}, 1);
  accumulator.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(accumulator.TakeChange(weights), ElementsAre(3));
}

TEST(GradientAccumulatorTest, WithoutAnExampleNothingChanges) {
  GradientAccumulator accumulator;
  float weights[] = {10};
  accumulator.Step(1, absl::MakeSpan(weights));
  EXPECT_THAT(weights, ElementsAre(10));
  EXPECT_THAT(accumulator.TakeChange(weights), IsEmpty());
}

void Repeat(LossScaler& scaler, int times, bool finite) {
  for (int i = 0; i < times; ++i) scaler.Update(finite);
}

TEST(LossScalerTest, BeginsAtTwoToThe16) { EXPECT_EQ(LossScaler().scale(), 65536.0f); }

TEST(LossScalerTest, AnOverflowHalvesIt) {
  LossScaler scaler;
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 32768.0f);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 16384.0f);
}

TEST(LossScalerTest, TwoThousandGoodBatchesDoubleIt) {
  LossScaler scaler;
  Repeat(scaler, 1999, true);
  EXPECT_EQ(scaler.scale(), 65536.0f);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 131072.0f);
  Repeat(scaler, 1999, true);
  EXPECT_EQ(scaler.scale(), 131072.0f);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 262144.0f);
}

TEST(LossScalerTest, AnOverflowBeginsTheCountAnew) {
  LossScaler scaler;
  Repeat(scaler, 1999, true);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 32768.0f);
  Repeat(scaler, 1999, true);
  EXPECT_EQ(scaler.scale(), 32768.0f);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 65536.0f);
}

TEST(LossScalerTest, StaysWithinItsBounds) {
  LossScaler scaler;
  Repeat(scaler, 2000 * 8, true);
  EXPECT_EQ(scaler.scale(), 16777216.0f);
  Repeat(scaler, 2000, true);
  EXPECT_EQ(scaler.scale(), 16777216.0f);
  Repeat(scaler, 38, false);
  EXPECT_EQ(scaler.scale(), 1.0f / 16384);
  Repeat(scaler, 5, false);
  EXPECT_EQ(scaler.scale(), 1.0f / 16384);
}

// A model with one weight on each of two devices.
class GradientUnscalerTest : public ::testing::Test {
 protected:
  GradientUnscalerTest() {
    const v1::Model config = ParseModel(
        "layers { dense { units: 1 no_bias: true } device: 'cpu' } "
        "layers { dense { units: 1 no_bias: true } device: '0' } "
        "loss { mean_squared_error {} }");
    model_ =
        Model::Create(config, {.features = 1, .max_batch = 1, .devices = {{"cpu", cpu_.get()}, {"0", queued_.get()}}})
            .value();
  }

  void SetGradient(size_t index, float value) {
    const DeviceTensor gradient = model_->DeviceGradient(index);
    gradient.on.device->Fill(value, gradient.elements);
  }

  const std::unique_ptr<Device> cpu_ = CreateCpuDevice(1);
  const std::unique_ptr<QueuedDevice> queued_ = CreateQueuedDevice();
  std::unique_ptr<Model> model_;
};

TEST_F(GradientUnscalerTest, MultipliesWhereTheDevicesHaveThem) {
  GradientUnscaler unscaler(model_.get());
  for (const size_t index : {0, 1}) {
    SetGradient(index, 8);
    ASSERT_TRUE(unscaler.Unscale(index, 0.25f).ok());
    EXPECT_EQ(Gradient(*model_, index)[0], 2);
  }
  EXPECT_TRUE(unscaler.TakeFinite().value());
}

TEST_F(GradientUnscalerTest, OneThatIsNotFiniteOnAnyDeviceIsToldOnce) {
  GradientUnscaler unscaler(model_.get());
  for (const size_t bad : {0, 1}) {
    for (const size_t index : {0, 1}) {
      SetGradient(index, index == bad ? INFINITY : 1);
      ASSERT_TRUE(unscaler.Unscale(index, 0.25f).ok());
    }
    EXPECT_FALSE(unscaler.TakeFinite().value());
    for (const size_t index : {0, 1}) {
      SetGradient(index, 1);
      ASSERT_TRUE(unscaler.Unscale(index, 0.25f).ok());
    }
    EXPECT_TRUE(unscaler.TakeFinite().value());
  }
}

TEST_F(GradientUnscalerTest, DeviceThatFailsIsNoVerdict) {
  GradientUnscaler unscaler(model_.get());
  ASSERT_TRUE(unscaler.Unscale(1, 0.25f).ok());
  queued_->Fail(absl::UnavailableError("the GPU is lost"));
  EXPECT_EQ(unscaler.TakeFinite().status(), absl::UnavailableError("the GPU is lost"));
}

}  // namespace
}  // namespace ballast
