// SPDX-License-Identifier: Apache-2.0
#include "common/clicks/click_line.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(ClickLineTest, HasALabelNumbersAndHexadecimalCategories) {
  ClickRow row;
  row.clicked = true;
  row.numbers[0] = 7;
  row.numbers[12] = 1'000'000'000;
  row.categories[0] = 0xab;
  row.categories[25] = 0xffffffff;
  std::string text = "before\n";
  AppendClickLine(row, text);
  EXPECT_EQ(text, "before\n1\t7\t\t\t\t\t\t\t\t\t\t\t\t1000000000\t000000ab" + std::string(25, '\t') + "ffffffff\n");
}

}  // namespace
}  // namespace ballast
