// SPDX-License-Identifier: Apache-2.0
#include "server/tables/table_ticks.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(TableTicksTest, WithoutALifetimeNothingExpires) {
  TableTicks ticks(0);
  ticks.Add(1, 1);
  ticks.Add(1000000, 2);
  EXPECT_EQ(ticks.live_since(), 0u);
  EXPECT_TRUE(ticks.Save().empty());
}

TEST(TableTicksTest, RowsExpireOnceTheirLifetimeHasPassed) {
  TableTicks ticks(100);
  ticks.Add(1000, 5);
  ticks.Add(1050, 8);
  ticks.Add(1099, 9);
  EXPECT_EQ(ticks.live_since(), 0u);
  ticks.Add(1100, 10);
  EXPECT_EQ(ticks.live_since(), 0u) << "no tick follows another this soon";
  ticks.Add(1103, 10);
  EXPECT_EQ(ticks.live_since(), 5u);
  ticks.Add(1160, 20);
  EXPECT_EQ(ticks.live_since(), 8u);
  ticks.Add(5000, 30);
  EXPECT_EQ(ticks.live_since(), 20u);
}

TEST(TableTicksTest, AClockThatGoesBackChangesNothing) {
  TableTicks ticks(100);
  ticks.Add(1000, 5);
  ticks.Add(10, 6);
  ticks.Add(1101, 7);
  EXPECT_EQ(ticks.live_since(), 5u);
}

TEST(TableTicksTest, KeepsFewTicks) {
  TableTicks ticks(3200);
  for (uint64_t second = 0; second < 100000; ++second) ticks.Add(second, second);
  EXPECT_LE(ticks.Save().size(), 34u);
  EXPECT_NEAR(static_cast<double>(ticks.live_since()), 100000 - 3200, 200);
}

TEST(TableTicksTest, ARestoredClockGoesOnLikeTheSaved) {
  TableTicks saved(50), restored(50);
  for (uint64_t second = 0; second < 130; ++second) saved.Add(second, 2 * second);
  restored.Restore(saved.Save());
  for (uint64_t second = 130; second < 300; second += 7) {
    saved.Add(second, 2 * second);
    restored.Add(second, 2 * second);
    ASSERT_EQ(restored.live_since(), saved.live_since()) << second;
  }
}

}  // namespace
}  // namespace ballast
