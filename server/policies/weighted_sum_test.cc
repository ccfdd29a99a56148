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

const std::vector<float> kA = {1, 2}, kB = {3, 5};

WeightedSum SumOf(const std::vector<std::pair<uint32_t, std::vector<float>>>& gradients) {
  WeightedSum sum;
  for (const auto& [examples, values] : gradients) sum.Add(examples, Gradient(values));
  return sum;
}

TEST(WeightedSumTest, WeighsByExamples) {
  EXPECT_EQ(Mean(SumOf({{2, {4, 0}}, {1, {0, 8}}, {1, {8, 16}}})), (std::vector<float>{4, 6}));
}

TEST(WeightedSumTest, AGradientAloneKeepsItsBits) {
  // 7 * 0.1f / 7 is not 0.1f.
  EXPECT_EQ(Mean(SumOf({{7, {0.1f, 0.3f}}, {0, {}}})), (std::vector<float>{0.1f, 0.3f}));
}

TEST(WeightedSumTest, AddsInTheOrderOfArrival) {
  // Floats near 1e8 are multiples of 8.
  EXPECT_EQ(Mean(SumOf({{1, {1e8f}}, {1, {-1e8f}}, {2, {1}}})), std::vector<float>{0.5f});
  EXPECT_EQ(Mean(SumOf({{1, {1e8f}}, {2, {1}}, {1, {-1e8f}}})), std::vector<float>{0});
  EXPECT_EQ(Mean(SumOf({{2, {3, 1}}, {1, {6, 4}}, {1, {4, 2}}, {4, {1.5f, 2.5f}}})),
            (std::vector<float>{2.75f, 2.25f}));
}

TEST(WeightedSumTest, TheLastAddendNeedNotBeAdded) {
  const std::vector<float> a = {1e8f, 0.1f}, b = {-1e8f, 0.2f}, c = {1.0f, 0.3f};
  for (const auto& before : std::vector<std::vector<std::pair<uint32_t, std::vector<float>>>>{
           {{3, a}}, {{3, a}, {5, b}}, {{1, a}, {0, {}}}}) {
    const WeightedSum sum = SumOf(before);
    std::vector<float> with;
    sum.With(7, Gradient(c)).ForEachBlock([&](size_t, absl::Span<const float> block) {
      for (float value : block) with.push_back(value * sum.ScaleWith(7));
    });
    auto all = before;
    all.push_back({7, c});
    EXPECT_EQ(with, Mean(SumOf(all)));
    EXPECT_EQ(Mean(sum), Mean(SumOf(before)));
  }
}

TEST(WeightedSumTest, WhatWasKeptAddsLikeWhatCame) {
  const std::vector<float> a = {1e8f, 0.1f}, b = {-1e8f, 0.2f}, c = {1.0f, 0.3f};
  WeightedSum kept;
  WeightedSum::Kept third = kept.Keep(7, Gradient(c)), second = kept.Keep(5, Gradient(b)),
                    first = kept.Keep(3, Gradient(a));
  for (WeightedSum::Kept* one : {&first, &second, &third}) kept.Add(std::move(*one));
  EXPECT_EQ(Mean(kept), Mean(SumOf({{3, a}, {5, b}, {7, c}})));
}

TEST(WeightedSumTest, BeginsAnewOnceCleared) {
  WeightedSum sum = SumOf({{4, kA}, {4, kB}});
  sum.Clear();
  sum.Add(2, Gradient(kB));
  EXPECT_EQ(Mean(sum), kB);
}

TEST(WeightedSumTest, AStepLikeTheOneBeforeTakesItsMemory) {
  WeightedSum sum = SumOf({{1, kA}});
  WeightedSum::Kept kept = sum.Keep(1, Gradient(kB));
  const float* memory = kept.values.values().data();
  sum.Add(std::move(kept));
  sum.Clear();
  EXPECT_EQ(sum.Keep(1, Gradient(kA)).values.values().data(), memory);
}

TEST(WeightedSumTest, WhatWasSavedStaysAsItIs) {
  WeightedSum sum = SumOf({{1, kA}});
  PolicyState saved;
  sum.Save(saved);
  const float* shared = saved.sum.values().data();
  sum.Add(1, Gradient(kB));
  EXPECT_EQ(saved.sum.values().data(), shared);
  EXPECT_EQ(saved.sum.values()[1], 2);
  EXPECT_EQ(Mean(sum), std::vector<float>({2, 3.5f}));
  WeightedSum restored;
  ASSERT_TRUE(restored.Restore(saved, 2).ok());
  restored.Add(1, Gradient(kB));
  EXPECT_EQ(Mean(restored), Mean(sum));
  EXPECT_EQ(saved.sum.values()[0], 1);
  EXPECT_EQ(restored.Restore(saved, 3).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
