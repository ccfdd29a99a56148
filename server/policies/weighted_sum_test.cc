// SPDX-License-Identifier: Apache-2.0
#include "server/policies/weighted_sum.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

std::vector<float> Mean(const WeightedSum& sum) {
  std::vector<float> mean;
  sum.gradient().ForEachBlock([&](size_t, absl::Span<const float> block) {
    for (float value : block) mean.push_back(value * sum.scale());
  });
  return mean;
}

TEST(WeightedSumTest, WeighsByExamples) {
  const std::vector<float> a = {4, 0}, b = {0, 8}, c = {8, 16};
  WeightedSum sum;
  sum.Add(2, Gradient(a));
  sum.Add(1, Gradient(b));
  sum.Add(1, Gradient(c));
  EXPECT_EQ(Mean(sum), (std::vector<float>{4, 6}));
}

TEST(WeightedSumTest, AGradientAloneKeepsItsBits) {
  // 7 * 0.1f / 7 is not 0.1f.
  const std::vector<float> alone = {0.1f, 0.3f}, nothing;
  WeightedSum sum;
  sum.Add(7, Gradient(alone));
  sum.Add(0, Gradient(nothing));
  EXPECT_EQ(Mean(sum), alone);
}

TEST(WeightedSumTest, WhatWasKeptAddsLikeWhatCame) {
  const std::vector<float> a = {1e8f, 0.1f}, b = {-1e8f, 0.2f}, c = {1.0f, 0.3f};
  WeightedSum direct, kept;
  direct.Add(3, Gradient(a));
  direct.Add(5, Gradient(b));
  direct.Add(7, Gradient(c));
  WeightedSum::Kept third = kept.Keep(7, Gradient(c)), second = kept.Keep(5, Gradient(b)),
                    first = kept.Keep(3, Gradient(a));
  kept.Add(std::move(first));
  kept.Add(std::move(second));
  kept.Add(std::move(third));
  EXPECT_EQ(Mean(kept), Mean(direct));
}

TEST(WeightedSumTest, BeginsAnewOnceCleared) {
  const std::vector<float> a = {1, 2}, b = {3, 5};
  WeightedSum sum;
  sum.Add(4, Gradient(a));
  sum.Add(4, Gradient(b));
  sum.Clear();
  sum.Add(2, Gradient(b));
  EXPECT_EQ(Mean(sum), b);
}

TEST(WeightedSumTest, AStepLikeTheOneBeforeTakesItsMemory) {
  const std::vector<float> a = {1, 2}, b = {3, 5};
  WeightedSum sum;
  sum.Add(1, Gradient(a));
  WeightedSum::Kept kept = sum.Keep(1, Gradient(b));
  const float* memory = kept.values.values().data();
  sum.Add(std::move(kept));
  sum.Clear();
  EXPECT_EQ(sum.Keep(1, Gradient(a)).values.values().data(), memory);
}

TEST(WeightedSumTest, WhatWasSavedStaysAsItIs) {
  const std::vector<float> a = {1, 2}, b = {3, 5};
  WeightedSum sum;
  sum.Add(1, Gradient(a));
  PolicyState saved;
  sum.Save(saved);
  const float* shared = saved.sum.values().data();
  sum.Add(1, Gradient(b));
  EXPECT_EQ(saved.sum.values().data(), shared);
  EXPECT_EQ(saved.sum.values()[1], 2);
  EXPECT_EQ(Mean(sum), std::vector<float>({2, 3.5f}));
  WeightedSum restored;
  ASSERT_TRUE(restored.Restore(saved, 2).ok());
  restored.Add(1, Gradient(b));
  EXPECT_EQ(Mean(restored), Mean(sum));
  EXPECT_EQ(saved.sum.values()[0], 1);
  EXPECT_EQ(restored.Restore(saved, 3).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
