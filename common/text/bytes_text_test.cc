// SPDX-License-Identifier: Apache-2.0
#include "common/text/bytes_text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ballast {
namespace {

TEST(BytesTextTest, TakesTheLargestUnitBelowTheAmount) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(3 << 20), "3.0 MiB");
  EXPECT_EQ(BytesText(1e18), "909494.7 TiB");
  EXPECT_EQ(BytesText(INFINITY), "not finite");
}

}  // namespace
}  // namespace ballast
