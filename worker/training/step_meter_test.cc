// SPDX-License-Identifier: Apache-2.0
#include "worker/training/step_meter.h"

#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(WeightSampleTest, ASmallTensorIsExact) {
  const std::vector<float> before = {3, 4, 0}, after = {3, 2, 1};
  const WeightSample sample(before);
  EXPECT_EQ(sample.SumOfSquares(), 25);
  EXPECT_EQ(sample.SumOfSquaredChanges(after), 5);
  EXPECT_EQ(WeightSample({}).SumOfSquares(), 0);
  EXPECT_EQ(WeightSample({}).SumOfSquaredChanges({}), 0);
}

TEST(WeightSampleTest, ALargeTensorIsEstimated) {
  const size_t size = 10 * WeightSample::kMost + 7;
  const std::vector<float> before(size, 2), after(size, 3);
  const WeightSample sample(before);
  EXPECT_DOUBLE_EQ(sample.SumOfSquares(), 4.0 * static_cast<double>(size));
  EXPECT_DOUBLE_EQ(sample.SumOfSquaredChanges(after), static_cast<double>(size));
}

TEST(SumOfSquaresTest, AddsEveryElement) {
  std::vector<float> elements(35);
  double want = 0;
  for (size_t i = 0; i < elements.size(); ++i) {
    elements[i] = static_cast<float>(i);
    want += static_cast<double>(i * i);
  }
  EXPECT_EQ(SumOfSquares(elements), want);
  // Beyond the range of float.
  EXPECT_DOUBLE_EQ(SumOfSquares({1e30f}), static_cast<double>(1e30f) * 1e30f);
}

class StepMeterTest : public testing::Test {
 protected:
  static GroupMeasure Group(double gradient_squares, std::vector<float> weights) {
    GroupMeasure group = {.gradient_squares = gradient_squares};
    group.weights.emplace_back(weights);
    return group;
  }

  StepMeter meter_{absl::Seconds(10)};
  const absl::Time start_ = absl::UnixEpoch();
};

TEST_F(StepMeterTest, FiguresAreThoseOfAllGroups) {
  ASSERT_TRUE(meter_.Begin(2, start_));
  meter_.Add(Group(9, {3}), 0.25);
  EXPECT_FALSE(meter_.figures().gradient_norm.has_value());
  meter_.Add(Group(16, {4}), 0);
  EXPECT_EQ(meter_.figures().gradient_norm, 5);
  EXPECT_EQ(meter_.figures().update_ratio, 0.1);
}

TEST_F(StepMeterTest, MeasuresAtMostOneStepInAnInterval) {
  ASSERT_TRUE(meter_.Begin(1, start_));
  meter_.Add(Group(1, {1}), 1);
  EXPECT_FALSE(meter_.Begin(1, start_ + absl::Seconds(9)));
  EXPECT_TRUE(meter_.Begin(1, start_ + absl::Seconds(10)));
}

TEST_F(StepMeterTest, AStepInTransitIsMeasuredToItsEnd) {
  ASSERT_TRUE(meter_.Begin(2, start_));
  meter_.Add(Group(1, {1}), 1);
  EXPECT_FALSE(meter_.Begin(2, start_ + absl::Seconds(60)));
  meter_.Add(Group(0, {0}), 0);
  EXPECT_EQ(meter_.figures().gradient_norm, 1);
}

TEST_F(StepMeterTest, WhatIsPartlyUnknownHasNoFigure) {
  ASSERT_TRUE(meter_.Begin(2, start_));
  meter_.Add(Group(1, {1}), 1);
  GroupMeasure encoded = Group(0, {1});
  encoded.gradient_squares.reset();
  meter_.Add(encoded, std::nullopt);
  EXPECT_FALSE(meter_.figures().gradient_norm.has_value());
  EXPECT_FALSE(meter_.figures().update_ratio.has_value());
  ASSERT_TRUE(meter_.Begin(1, start_ + absl::Seconds(10)));
  meter_.Add(Group(4, {0}), 1);
  EXPECT_EQ(meter_.figures().gradient_norm, 2);
  EXPECT_FALSE(meter_.figures().update_ratio.has_value()) << "all weights are 0";
}

}  // namespace
}  // namespace ballast
