// SPDX-License-Identifier: Apache-2.0
#include "server/memory/byte_budget.h"

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(ByteBudgetTest, RefusesWhatWouldPassTheLimitAndCountsIt) {
  ByteBudget budget(100);
  auto first = budget.Reserve(60);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(budget.Reserve(41).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(budget.refused(), 1u);
  EXPECT_EQ(budget.used(), 60u);
  EXPECT_TRUE(budget.Reserve(40).ok());
}

TEST(ByteBudgetTest, WhatIsReleasedMayBeReservedAgain) {
  ByteBudget budget(100);
  {
    ByteBudget::Reservation held = *budget.Reserve(100);
    ByteBudget::Reservation moved = std::move(held);
    EXPECT_EQ(budget.used(), 100u);
  }
  EXPECT_EQ(budget.used(), 0u);
  ByteBudget::Reservation again = *budget.Reserve(100);
  again.Release();
  again.Release();
  EXPECT_EQ(budget.used(), 0u);
}

TEST(ByteBudgetTest, ASingleOneGetsInHoweverLarge) {
  ByteBudget budget(100);
  EXPECT_TRUE(budget.Reserve(1000).ok());
}

// Bytes used in a part and in the whole.
using Used = std::pair<uint64_t, uint64_t>;
Used UsedIn(const ByteBudget& part, const ByteBudget& whole) { return {part.used(), whole.used()}; }

TEST(ByteBudgetTest, APartLeavesTheRestOfTheWholeToOthers) {
  ByteBudget whole(100);
  ByteBudget part(25, &whole);
  auto first = part.Reserve(20);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(whole.used(), 20u);
  EXPECT_FALSE(part.Reserve(20).ok());
  EXPECT_EQ(UsedIn(part, whole), Used(20, 20));
  auto others = whole.Reserve(80);
  ASSERT_TRUE(others.ok());
  // The whole is full, though the part is not.
  EXPECT_FALSE(part.Reserve(5).ok());
  EXPECT_EQ(UsedIn(part, whole), Used(20, 100));
  first->Release();
  EXPECT_EQ(UsedIn(part, whole), Used(0, 80));
}

TEST(ByteBudgetTest, AReservationShrinksInThePartAndInTheWhole) {
  ByteBudget whole(100);
  ByteBudget part(50, &whole);
  auto reservation = part.Reserve(30);
  ASSERT_TRUE(reservation.ok());
  for (const uint64_t bytes : {10, 20}) {
    reservation->ShrinkTo(bytes);
    EXPECT_EQ(UsedIn(part, whole), Used(10, 10)) << bytes;
  }
  reservation->Release();
  EXPECT_EQ(UsedIn(part, whole), Used(0, 0));
}

TEST(ByteBudgetTest, CountsWhatIsInUseAnywayEvenAboveTheLimit) {
  ByteBudget whole(100), part(10, &whole);
  ByteBudget::Reservation held = part.Count(8);
  held.Add(part.Count(5));
  EXPECT_EQ(part.used(), 13u);
  EXPECT_EQ(whole.used(), 13u);
  EXPECT_FALSE(part.Reserve(1).ok());
  held.Release();
  EXPECT_EQ(part.used(), 0u);
  EXPECT_EQ(whole.used(), 0u);
}

TEST(ByteBudgetTest, NeverPassesTheLimitWithManyThreads) {
  ByteBudget budget(10);
  std::atomic<bool> passed{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20000; ++round) {
        auto reservation = budget.Reserve(4);
        if (budget.used() > 10) passed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(passed);
  EXPECT_EQ(budget.used(), 0u);
}

}  // namespace
}  // namespace ballast
