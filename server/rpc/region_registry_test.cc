// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/region_registry.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ballast {
namespace {

const uint64_t kAreaBytes = SharedRegion::BytesOf(RegionRegistry::kBlocks);

class RegionRegistryTest : public testing::Test {
 protected:
  auto Add() {
    return registry_.Add([this](const absl::Status& reason) { ends_.push_back(std::string(reason.message())); });
  }

  // Adds a region whose client lends slot 0 and then goes away; returns its id.
  uint64_t AddAndLend() {
    const std::shared_ptr<SharedRegion> region = *Add();
    region->Lend(0);
    return region->id();
  }

  ByteBudget budget_{3 * kAreaBytes};
  RegionRegistry registry_{&budget_};
  // Reasons for which areas ended.
  std::vector<std::string> ends_;
};

TEST_F(RegionRegistryTest, CountsAnAreaInTheBudgetUntilItsClientIsGone) {
  const uint64_t id = (*Add())->id();
  EXPECT_EQ(budget_.used(), kAreaBytes);
  EXPECT_EQ(registry_.size(), 1u);
  registry_.Release(id);
  EXPECT_EQ(budget_.used(), 0u);
  EXPECT_EQ(registry_.size(), 0u);
}

TEST_F(RegionRegistryTest, SharesNoMoreThanThreeQuartersOfTheBudget) {
  const auto first = Add(), second = Add(), third = Add();
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(third.status())) << third.status();
  registry_.Release((*first)->id());
  EXPECT_TRUE(Add().ok());
}

TEST_F(RegionRegistryTest, BorrowsWhatIsLentAndGivesItBack) {
  const std::shared_ptr<SharedRegion> region = *Add();
  EXPECT_TRUE(absl::IsInvalidArgument(registry_.Borrow(region->id(), 3).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(registry_.Borrow(region->id(), RegionRegistry::kBlocks).status()));
  region->Lend(3);
  {
    const auto slot = registry_.Borrow(region->id(), 3);
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(slot->memory().data(), region->Slot(3).data());
    EXPECT_FALSE(region->TakeBack(3));
  }
  EXPECT_TRUE(region->TakeBack(3));
}

TEST_F(RegionRegistryTest, ABorrowedBlockOutlivesItsClient) {
  const uint64_t id = AddAndLend();
  const auto slot = registry_.Borrow(id, 0);
  ASSERT_TRUE(slot.ok()) << slot.status();
  registry_.Release(id);
  slot->memory()[0] = 'a';
  EXPECT_EQ(slot->memory()[0], 'a');
}

TEST_F(RegionRegistryTest, CountsAnAreaInTheBudgetAsLongAsABlockOfItIsBorrowed) {
  const uint64_t id = AddAndLend();
  {
    const auto slot = registry_.Borrow(id, 0);
    ASSERT_TRUE(slot.ok()) << slot.status();
    registry_.Release(id);
    EXPECT_EQ(budget_.used(), kAreaBytes);
  }
  EXPECT_EQ(budget_.used(), 0u);
}

TEST_F(RegionRegistryTest, AnswersAnUnknownAreaSoThatTheClientSendsTheMessageItself) {
  EXPECT_TRUE(absl::IsUnavailable(registry_.Borrow(17, 0).status()));
}

TEST_F(RegionRegistryTest, CloseEndsEveryAreaOnceAndRefusesNewOnes) {
  ASSERT_TRUE(Add().ok());
  registry_.Release((*Add())->id());
  registry_.Close(absl::UnavailableError("shutting down"));
  registry_.Close(absl::UnavailableError("again"));
  EXPECT_EQ(ends_, std::vector<std::string>{"shutting down"});
  EXPECT_EQ(budget_.used(), 0u);
  EXPECT_TRUE(absl::IsUnavailable(Add().status()));
}

}  // namespace

}  // namespace ballast
