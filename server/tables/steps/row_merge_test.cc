// SPDX-License-Identifier: Apache-2.0
#include "server/tables/steps/row_merge.h"

#include <cstring>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/policies/weighted_sum.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Owns what an addend views.
struct Message {
  uint32_t worker = 0;
  uint32_t examples = 0;
  std::vector<uint64_t> hashes;
  std::vector<float> gradients;

  RowAddend View() const { return {worker, examples, hashes, gradients}; }
};

MergedRows Merge(const std::vector<Message>& messages, uint32_t dim, uint64_t examples) {
  std::vector<RowAddend> addends;
  for (const Message& message : messages) addends.push_back(message.View());
  return MergeRows(addends, dim, examples);
}

TEST(RowMergeTest, ARowIsDividedByTheExamplesOfAllWorkers) {
  const MergedRows merged = Merge({{0, 3, {10, 20}, {1, 2}}, {1, 1, {20, 30}, {4, 8}}}, 1, 4);
  EXPECT_THAT(merged.hashes, ElementsAre(10, 20, 30));
  EXPECT_THAT(merged.gradients.values(), ElementsAre(3, 10, 8));
  EXPECT_EQ(merged.scale, 0.25);
}

TEST(RowMergeTest, TheGradientOfTheOnlyWorkerIsKept) {
  const MergedRows merged = Merge({{2, 7, {10, 20}, {0.1f, 0.2f, 0.3f, 0.4f}}}, 2, 7);
  EXPECT_THAT(merged.gradients.values(), ElementsAre(0.1f, 0.2f, 0.3f, 0.4f));
  EXPECT_EQ(merged.scale, 1);
}

TEST(RowMergeTest, MessagesOfOneWorkerAdd) {
  const MergedRows merged = Merge({{0, 2, {10}, {1}}, {0, 2, {10, 11}, {2, 5}}}, 1, 2);
  EXPECT_THAT(merged.hashes, ElementsAre(10, 11));
  EXPECT_THAT(merged.gradients.values(), ElementsAre(3, 5));
  EXPECT_EQ(merged.scale, 1);
}

TEST(RowMergeTest, NoRowsMergeToNone) { EXPECT_THAT(Merge({{0, 1, {}, {}}}, 4, 1).hashes, IsEmpty()); }

TEST(RowMergeTest, ARowHasTheBitsOfATensorOfItsLength) {
  constexpr uint32_t kDim = 3, kWorkers = 4;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 200; ++round) {
    std::map<uint64_t, WeightedSum> tensors;
    std::vector<Message> messages;
    uint64_t examples = 0;
    std::set<uint64_t> sent;
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      Message& message = messages.emplace_back();
      message.worker = worker;
      message.examples = 1 + random() % 5;
      examples += message.examples;
      for (uint64_t hash = 0; hash < 20; ++hash) {
        if (random() % 2 == 0) continue;
        message.hashes.push_back(hash);
        sent.insert(hash);
        for (uint32_t k = 0; k < kDim; ++k) message.gradients.push_back(random() % 8 == 0 ? -0.0f : normal(random));
      }
    }
    for (const Message& message : messages) {
      for (uint64_t hash : sent) {
        std::vector<float> gradient(kDim, 0.0f);
        for (size_t at = 0; at < message.hashes.size(); ++at) {
          if (message.hashes[at] == hash) std::copy_n(message.gradients.data() + at * kDim, kDim, gradient.data());
        }
        tensors[hash].Add(message.examples, Gradient(absl::MakeConstSpan(gradient)));
      }
    }
    const MergedRows merged = Merge(messages, kDim, examples);
    ASSERT_TRUE(std::equal(merged.hashes.begin(), merged.hashes.end(), sent.begin(), sent.end()));
    for (size_t row = 0; row < merged.hashes.size(); ++row) {
      const WeightedSum& tensor = tensors[merged.hashes[row]];
      EXPECT_EQ(merged.scale, tensor.scale());
      tensor.gradient().ForEachBlock([&](size_t first, absl::Span<const float> block) {
        EXPECT_EQ(std::memcmp(merged.gradients.values().data() + row * kDim + first, block.data(),
                              block.size() * sizeof(float)),
                  0)
            << "row " << merged.hashes[row] << " of round " << round;
      });
    }
  }
}

TEST(RowMergeTest, AddsTheUsesOfAllWorkers) {
  const std::vector<uint64_t> first = {1, 4}, second = {1, 2};
  const std::vector<float> gradients = {1, 1};
  const std::vector<uint16_t> uses = {65000, 7};
  const std::vector<uint16_t> more = {600, 2};
  const RowAddend addends[] = {
      {0, 1, first, gradients, uses}, {1, 1, second, gradients, {}}, {2, 1, first, gradients, more}};
  EXPECT_EQ(MergeRows(addends, 1, 3, /*count_uses=*/true).uses, (std::vector<uint16_t>{65535, 1, 9}));
  EXPECT_TRUE(MergeRows(addends, 1, 3).uses.empty());
}

}  // namespace
}  // namespace ballast
