// SPDX-License-Identifier: Apache-2.0
#include "server/policies/weighted_sum.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/wire/buffer_pool.h"
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

// Messages of one gradient after a header.
class MessageTest : public ::testing::Test {
 protected:
  static constexpr size_t kHeader = 64, kElements = 32 << 10;

  BufferPool::Buffer Receive(float value) {
    BufferPool::Buffer message = pool_.Get(kHeader + kElements * sizeof(float));
    std::fill_n(reinterpret_cast<float*>(message.data() + kHeader), kElements, value);
    return message;
  }
  static Gradient GradientOf(BufferPool::Buffer& message) {
    Gradient gradient(absl::MakeConstSpan(reinterpret_cast<const float*>(message.data() + kHeader), kElements));
    gradient.set_message(&message);
    return gradient;
  }

  BufferPool pool_{1 << 20, 4 << 20};
};

TEST_F(MessageTest, AFirstGradientStaysInItsMessageWhichReturnsWithTheNext) {
  WeightedSum sum;
  BufferPool::Buffer first = Receive(1), second = Receive(3), next = Receive(5);
  const uint64_t capacity = first.capacity();
  const Gradient gradient = GradientOf(first);
  sum.Add(1, gradient);
  EXPECT_TRUE(first.bytes().empty());
  EXPECT_EQ(sum.bytes(), capacity);
  // It is read, not taken.
  sum.Add(3, GradientOf(second));
  EXPECT_FALSE(second.bytes().empty());
  EXPECT_EQ(Mean(sum), std::vector<float>(kElements, 2.5f));
  PolicyState state;
  sum.Save(state);
  sum.Clear();
  EXPECT_EQ(pool_.free_bytes(), 0u);
  sum.Add(1, GradientOf(next));
  EXPECT_EQ(Mean(sum), std::vector<float>(kElements, 5));
  // The state that was saved still has the first one.
  EXPECT_EQ(pool_.free_bytes(), 0u);
  EXPECT_EQ(state.sum.values()[kElements - 1], 10);
  state = {};
  EXPECT_EQ(pool_.free_bytes(), capacity);
}

TEST_F(MessageTest, AGradientThatWaitsStaysInItsMessage) {
  WeightedSum sum;
  for (int step = 0; step < 3; ++step) {
    BufferPool::Buffer second = Receive(3), first = Receive(1);
    WeightedSum::Kept kept = sum.Keep(3, GradientOf(second));
    EXPECT_TRUE(second.bytes().empty());
    sum.Add(1, GradientOf(first));
    sum.Add(std::move(kept));
    EXPECT_EQ(Mean(sum), std::vector<float>(kElements, 2.5f));
    sum.Clear();
    // That of the sum and one spare, whatever the number of steps.
    EXPECT_EQ(sum.bytes() / kElements / sizeof(float), 2u);
  }
}

}  // namespace
}  // namespace ballast
