// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/standby_table.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

v1::StandbyReport Report(uint64_t standby, v1::StandbyReport::Stage stage) {
  v1::StandbyReport report;
  report.set_incarnation(standby);
  report.set_stage(stage);
  return report;
}

TEST(StandbyTableTest, OnlyAStandbyInStepMayTakeOver) {
  StandbyTable book(2);
  book.Follow(1, 5);
  EXPECT_EQ(book.follower(1), 5);
  EXPECT_EQ(book.ready(1), 0);
  EXPECT_FALSE(book.Report(1, Report(5, v1::StandbyReport::STAGE_CATCHING_UP)));
  EXPECT_EQ(book.ready(1), 0);
  EXPECT_TRUE(book.Report(1, Report(5, v1::StandbyReport::STAGE_IN_STEP)));
  EXPECT_FALSE(book.Report(1, Report(5, v1::StandbyReport::STAGE_IN_STEP)));
  EXPECT_EQ(book.ready(1), 5);
  EXPECT_EQ(book.ready(0), 0);
}

TEST(StandbyTableTest, WhatItsServerLostMayNeverTakeOver) {
  StandbyTable book(1);
  book.Follow(0, 3);
  book.Report(0, Report(3, v1::StandbyReport::STAGE_IN_STEP));
  EXPECT_TRUE(book.Report(0, Report(3, v1::StandbyReport::STAGE_LOST)));
  EXPECT_EQ(book.ready(0), 0);
  EXPECT_EQ(book.follower(0), 0);
  // An outdated heartbeat that a later one overtook.
  EXPECT_FALSE(book.Report(0, Report(3, v1::StandbyReport::STAGE_IN_STEP)));
  EXPECT_EQ(book.ready(0), 0);
}

TEST(StandbyTableTest, ANewStandbyBeginsBehind) {
  StandbyTable book(1);
  book.Follow(0, 3);
  book.Report(0, Report(3, v1::StandbyReport::STAGE_IN_STEP));
  book.Follow(0, 4);
  EXPECT_EQ(book.ready(0), 0);
  EXPECT_FALSE(book.Report(0, Report(3, v1::StandbyReport::STAGE_IN_STEP)));
  EXPECT_EQ(book.ready(0), 0);
  book.Lose(0, 3);
  EXPECT_EQ(book.follower(0), 4);
}

TEST(StandbyTableTest, TheOneThatTookOverIsToldAgain) {
  StandbyTable book(1);
  book.Follow(0, 3);
  book.Report(0, Report(3, v1::StandbyReport::STAGE_IN_STEP));
  book.Promote(0, 8);
  EXPECT_EQ(book.follower(0), 0);
  EXPECT_EQ(book.PromotedTo(0, 3), 8);
  EXPECT_EQ(book.PromotedTo(0, 4), std::nullopt);
  book.Follow(0, 4);
  EXPECT_EQ(book.PromotedTo(0, 3), 8);
}

TEST(StandbyTableTest, OutlivesItsProcess) {
  StandbyTable book(2);
  book.Follow(1, 3);
  book.Report(1, Report(3, v1::StandbyReport::STAGE_IN_STEP));
  StandbyTable again(2);
  ASSERT_TRUE(again.Restore(book.Export()).ok());
  EXPECT_EQ(again.ready(1), 3);
  EXPECT_EQ(StandbyTable(3).Restore(book.Export()).message(), "saved standbys: got 2, want one for each of 3 servers");
}

}  // namespace
}  // namespace ballast
