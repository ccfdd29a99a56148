// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/region_registry.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ballast {
namespace {

const uint64_t kAreaBytes = SharedArea::BytesOf(AreaRegistry::kBlocks);

TEST(AreaRegistryTest, CountsAnAreaInTheBudgetUntilItsClientIsGone) {
  ByteBudget budget(2 * kAreaBytes);
  AreaRegistry registry(&budget);
  const uint64_t id = (*registry.Add([](const absl::Status&) {}))->id();
  EXPECT_EQ(budget.used(), kAreaBytes);
  EXPECT_EQ(registry.size(), 1u);
  registry.Release(id);
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_EQ(registry.size(), 0u);
}

TEST(AreaRegistryTest, SharesNoMoreThanThreeQuartersOfTheBudget) {
  ByteBudget budget(3 * kAreaBytes);
  AreaRegistry registry(&budget);
  const auto first = registry.Add([](const absl::Status&) {});
  const auto second = registry.Add([](const absl::Status&) {});
  EXPECT_TRUE(first.ok() && second.ok());
  const auto third = registry.Add([](const absl::Status&) {});
  EXPECT_TRUE(absl::IsResourceExhausted(third.status())) << third.status();
  registry.Release((*first)->id());
  EXPECT_TRUE(registry.Add([](const absl::Status&) {}).ok());
}

TEST(AreaRegistryTest, BorrowsWhatIsLentAndGivesItBack) {
  ByteBudget budget(2 * kAreaBytes);
  AreaRegistry registry(&budget);
  const std::shared_ptr<SharedArea> area = *registry.Add([](const absl::Status&) {});
  EXPECT_TRUE(absl::IsInvalidArgument(registry.Borrow(area->id(), 3).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(registry.Borrow(area->id(), AreaRegistry::kBlocks).status()));
  area->Lend(3);
  {
    const auto block = registry.Borrow(area->id(), 3);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_EQ(block->memory().data(), area->Block(3).data());
    EXPECT_FALSE(area->TakeBack(3));
  }
  EXPECT_TRUE(area->TakeBack(3));
}

TEST(AreaRegistryTest, ABorrowedBlockOutlivesItsClient) {
  ByteBudget budget(2 * kAreaBytes);
  AreaRegistry registry(&budget);
  uint64_t id = 0;
  {
    const std::shared_ptr<SharedArea> area = *registry.Add([](const absl::Status&) {});
    area->Lend(0);
    id = area->id();
  }
  const auto block = registry.Borrow(id, 0);
  ASSERT_TRUE(block.ok()) << block.status();
  registry.Release(id);
  block->memory()[0] = 'a';
  EXPECT_EQ(block->memory()[0], 'a');
}

TEST(AreaRegistryTest, CountsAnAreaInTheBudgetAsLongAsABlockOfItIsBorrowed) {
  ByteBudget budget(2 * kAreaBytes);
  AreaRegistry registry(&budget);
  uint64_t id = 0;
  {
    const std::shared_ptr<SharedArea> area = *registry.Add([](const absl::Status&) {});
    area->Lend(0);
    id = area->id();
  }
  {
    const auto block = registry.Borrow(id, 0);
    ASSERT_TRUE(block.ok()) << block.status();
    registry.Release(id);
    EXPECT_EQ(budget.used(), kAreaBytes);
  }
  EXPECT_EQ(budget.used(), 0u);
}

TEST(AreaRegistryTest, AnswersAnUnknownAreaSoThatTheClientSendsTheMessageItself) {
  ByteBudget budget(2 * kAreaBytes);
  const AreaRegistry registry(&budget);
  EXPECT_TRUE(absl::IsUnavailable(registry.Borrow(17, 0).status()));
}

TEST(AreaRegistryTest, CloseEndsEveryAreaOnceAndRefusesNewOnes) {
  ByteBudget budget(4 * kAreaBytes);
  AreaRegistry registry(&budget);
  std::vector<std::string> ends;
  const auto add = [&] {
    return registry.Add([&](const absl::Status& reason) { ends.push_back(std::string(reason.message())); });
  };
  ASSERT_TRUE(add().ok());
  registry.Release((*add())->id());
  registry.Close(absl::UnavailableError("shutting down"));
  registry.Close(absl::UnavailableError("again"));
  EXPECT_EQ(ends, std::vector<std::string>{"shutting down"});
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_TRUE(absl::IsUnavailable(add().status()));
}

}  // namespace
}  // namespace ballast
