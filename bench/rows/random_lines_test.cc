// SPDX-License-Identifier: Apache-2.0
#include "bench/rows/random_lines.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(RandomLinesTest, MeasuresFiveNumbersOfLoadsInFlight) {
  const absl::StatusOr<std::vector<RandomLines>> lines = MeasureRandomLines(1 << 20, 0.001);
  ASSERT_TRUE(lines.ok()) << lines.status();
  std::vector<int> in_flight;
  for (const RandomLines& one : *lines) {
    in_flight.push_back(one.in_flight);
    EXPECT_GT(one.rate, 0);
  }
  EXPECT_THAT(in_flight, testing::ElementsAre(1, 4, 8, 16, 32));
}

TEST(RandomLinesTest, FailsWithoutTheMemory) {
  EXPECT_EQ(MeasureRandomLines(uint64_t{1} << 60, 0.001).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(RandomLinesTest, LimitIsTheBestRate) { EXPECT_EQ(BestRate({{1, 10}, {4, 40}, {8, 30}}), 40); }

// 16 weights and a slot take 80 bytes with the state, and start at a multiple of 16: always two lines.
TEST(RandomLinesTest, RowOf80BytesTouchesTwoLines) {
  EXPECT_EQ(LinesOfRow(RowLayout(16, 1)), 2);
  EXPECT_DOUBLE_EQ(LinesPerPull(RowLayout(16, 1)), 3.1);
  EXPECT_DOUBLE_EQ(LinesPerPush(RowLayout(16, 1)), 5.1);
}

// 8 weights and a slot take 48 bytes: rows at offsets 0 and 16 touch one line, those at 32 and 48 two.
TEST(RandomLinesTest, RowOf48BytesTouchesOneLineOrTwo) { EXPECT_EQ(LinesOfRow(RowLayout(8, 1)), 1.5); }

}  // namespace
}  // namespace ballast
