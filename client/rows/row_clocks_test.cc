// SPDX-License-Identifier: Apache-2.0
#include "client/rows/row_clocks.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(RowClocksTest, KeepsTheOldestClockOfATableAtAShard) {
  RowClocks clocks;
  clocks.Add(1, 0, 5);
  clocks.Add(1, 1, 7);
  clocks.Add(2, 0, 9);
  RowClocks later;
  later.Add(1, 0, 6);
  later.Add(1, 1, 3);
  later.Add(2, 1, 0);
  clocks.Add(later);
  EXPECT_EQ(clocks.Find(1, 0), 5u);
  EXPECT_EQ(clocks.Find(1, 1), 3u);
  EXPECT_EQ(clocks.Find(2, 0), 9u);
  EXPECT_EQ(clocks.Find(2, 1), 0u);
  EXPECT_EQ(clocks.Find(1, 2), std::nullopt);
  EXPECT_EQ(clocks.Find(3, 0), std::nullopt);
}

}  // namespace
}  // namespace ballast
