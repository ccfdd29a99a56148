// SPDX-License-Identifier: Apache-2.0
#include "common/text/nearest_name.h"

#include <vector>

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(NearestNameTest, FindsTheFirstOfTheNearest) {
  const std::vector<std::string> names = {"units", "inputs", "unity"};
  const NearestName nearest = FindNearestName("unit", names);
  EXPECT_EQ(*nearest.name, "units");
  EXPECT_EQ(nearest.distance, 1);
  EXPECT_EQ(FindNearestName("puts", names).distance, 2);
}

TEST(NearestNameTest, FindsNoneAmongNone) { EXPECT_EQ(FindNearestName("unit", {}).name, nullptr); }

}  // namespace
}  // namespace ballast
