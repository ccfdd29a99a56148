// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/region_registry.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ballast {
namespace {

const uint64_t kAreaBytes = SharedRegion::BytesOf(RegionRegistry::kBlocks);

TEST(RegionRegistryTest, CountsAnAreaInTheBudgetUntilItsClientIsGone) {
  ByteBudget budget(2 * kAreaBytes);
  RegionRegistry registry(&budget);
  const uint64_t id = (*registry.Add([](const absl::Status&) {}))->id();
  EXPECT_EQ(budget.used(), kAreaBytes);
  EXPECT_EQ(registry.size(), 1u);
  registry.Release(id);
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_EQ(registry.size(), 0u);
}

TEST(RegionRegistryTest, SharesNoMoreThanThreeQuartersOfTheBudget) {
  ByteBudget budget(3 * kAreaBytes);
  RegionRegistry registry(&budget);
  const auto first = registry.Add([](const absl::Status&) {});
  const auto second = registry.Add([](const absl::Status&) {});
  EXPECT_TRUE(first.ok() && second.ok());
  const auto third = registry.Add([](const absl::Status&) {});
  EXPECT_TRUE(absl::IsResourceExhausted(third.status())) << third.status();
  registry.Release((*first)->id());
  EXPECT_TRUE(registry.Add([](const absl::Status&) {}).ok());
}

TEST(RegionRegistryTest, BorrowsWhatIsLentAndGivesItBack) {
  ByteBudget budget(2 * kAreaBytes);
  RegionRegistry registry(&budget);
  const std::shared_ptr<SharedRegion> region = *registry.Add([](const absl::Status&) {});
  EXPECT_TRUE(absl::IsInvalidArgument(registry.Borrow(region->id(), 3).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(registry.Borrow(region->id(), RegionRegistry::kBlocks).status()));
  region->Lend(3);
  {
    const auto slot = registry.Borrow(region->id(), 3);
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(slot->memory().data(), region->Slot(3).data());
    EXPECT_FALSE(region->TakeBack(3));
  }
  EXPECT_TRUE(region->TakeBack(3));
}

// Adds a region whose client lends slot 0 and then goes away; returns its id.
uint64_t AddAndLend(RegionRegistry& registry) {
  const std::shared_ptr<SharedRegion> region = *registry.Add([](const absl::Status&) {});
  region->Lend(0);
  return region->id();
}

TEST(RegionRegistryTest, ABorrowedBlockOutlivesItsClient) {
  ByteBudget budget(2 * kAreaBytes);
  RegionRegistry registry(&budget);
  const uint64_t id = AddAndLend(registry);
  const auto slot = registry.Borrow(id, 0);
  ASSERT_TRUE(slot.ok()) << slot.status();
  registry.Release(id);
  slot->memory()[0] = 'a';
  EXPECT_EQ(slot->memory()[0], 'a');
}

TEST(RegionRegistryTest, CountsAnAreaInTheBudgetAsLongAsABlockOfItIsBorrowed) {
  ByteBudget budget(2 * kAreaBytes);
  RegionRegistry registry(&budget);
  const uint64_t id = AddAndLend(registry);
  {
    const auto slot = registry.Borrow(id, 0);
    ASSERT_TRUE(slot.ok()) << slot.status();
    registry.Release(id);
    EXPECT_EQ(budget.used(), kAreaBytes);
  }
  EXPECT_EQ(budget.used(), 0u);
}

TEST(RegionRegistryTest, AnswersAnUnknownAreaSoThatTheClientSendsTheMessageItself) {
  ByteBudget budget(2 * kAreaBytes);
  const RegionRegistry registry(&budget);
  EXPECT_TRUE(absl::IsUnavailable(registry.Borrow(17, 0).status()));
}

TEST(RegionRegistryTest, CloseEndsEveryAreaOnceAndRefusesNewOnes) {
  ByteBudget budget(4 * kAreaBytes);
  RegionRegistry registry(&budget);
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
