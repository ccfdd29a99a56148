// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/row_rules.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(RowScoreTest, CountsUses) {
  EXPECT_EQ(ScoreAt(ScoreAfter(0, 0, 10, 1), 0, 10), 1);
  EXPECT_EQ(ScoreAt(ScoreAfter(ScoreAfter(0, 0, 10, 3), 0, 10, 4), 0, 10), 7);
}

TEST(RowScoreTest, AUseCountsHalfAfterHalfLifeSteps) {
  const uint16_t score = ScoreAfter(0, 0, 10, 8);
  EXPECT_EQ(ScoreAt(score, 10, 10), 4);
  EXPECT_EQ(ScoreAt(score, 30, 10), 1);
  EXPECT_NEAR(ScoreAt(score, 5, 10), 5.656854249492381, 1e-11);
  EXPECT_EQ(ScoreAt(score, 2000000000, 10), 0);
}

TEST(RowScoreTest, EndsAt256) {
  uint16_t score = 0;
  for (int i = 0; i < 1000; ++i) score = ScoreAfter(score, 0, 10, 1);
  EXPECT_EQ(ScoreAt(score, 0, 10), 256);
  EXPECT_EQ(ScoreAt(ScoreAfter(0, 0, 10, 65535), 0, 10), 256);
}

TEST(RowScoreTest, HasTheSameBitsOnEveryMachine) {
  // Computed once; another library or instruction set must not change them.
  uint16_t score = 0;
  for (int i = 1; i <= 20; ++i) score = ScoreAfter(score, i, 7.5f, i % 4 + 1);
  EXPECT_EQ(score, 0x3fdd);
}

TEST(RowTimeTest, ARowExpiresOnceMoreThanMaxAgeStepsHavePassed) {
  const RowTime time{.now = 10, .max_age = 3};
  EXPECT_FALSE(time.HasExpired(7));
  EXPECT_TRUE(time.HasExpired(6));
  // A faster push was at a later step.
  EXPECT_FALSE(time.HasExpired(12));
  EXPECT_FALSE(RowTime{.now = 4000000000u}.HasExpired(1u << 31));
  // The clock's lowest 32 bits have wrapped around.
  EXPECT_FALSE((RowTime{.now = 1, .max_age = 3}.HasExpired(0xffffffff)));
}

}  // namespace
}  // namespace ballast
