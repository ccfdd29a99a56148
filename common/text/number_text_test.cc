// SPDX-License-Identifier: Apache-2.0
#include "common/text/number_text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ballast {
namespace {

TEST(NumberTextTest, CountsHaveACommaBeforeEachThreeDigits) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1000), "1,000");
  EXPECT_EQ(CountText(1234567), "1,234,567");
  EXPECT_EQ(CountText(-123456), "-123,456");
}

TEST(NumberTextTest, ValuesHaveFourSignificantDigits) {
  EXPECT_EQ(ValueText(0.253149), "0.2531");
  EXPECT_EQ(ValueText(12), "12");
  EXPECT_EQ(ValueText(10349.6), "10,350");
  EXPECT_EQ(ValueText(0.000012), "1.2e-05");
  EXPECT_EQ(ValueText(1e15), "1e+15");
}

TEST(NumberTextTest, WhatIsNotFiniteIsSaidSo) {
  EXPECT_EQ(ValueText(std::nan("")), "not finite");
  EXPECT_EQ(PercentText(INFINITY), "not finite");
  EXPECT_EQ(DurationText(std::nan("")), "not finite");
}

TEST(NumberTextTest, SharesArePerCentWithTwoDecimals) {
  EXPECT_EQ(PercentText(0.8875), "88.75%");
  EXPECT_EQ(PercentText(1), "100.00%");
}

TEST(NumberTextTest, DurationsAreAsExactAsAPersonCares) {
  EXPECT_EQ(DurationText(0.44), "0.4 s");
  EXPECT_EQ(DurationText(31.6), "32 s");
  EXPECT_EQ(DurationText(59.7), "1 min 0 s");
  EXPECT_EQ(DurationText(92), "1 min 32 s");
  EXPECT_EQ(DurationText(2353), "39 min");
  EXPECT_EQ(DurationText(7500), "2 h 5 min");
}

TEST(NumberTextTest, HtmlTextEscapesEveryCharacterThatMeansSomething) {
  EXPECT_EQ(HtmlText("<a href='x' title=\"y\">&"), "&lt;a href=&#39;x&#39; title=&quot;y&quot;&gt;&amp;");
}

TEST(BytesTextTest, TakesTheLargestUnitBelowTheAmount) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(3 << 20), "3.0 MiB");
  EXPECT_EQ(BytesText(1e18), "909494.7 TiB");
  EXPECT_EQ(BytesText(INFINITY), "not finite");
}

TEST(NumberTextTest, ReadsRankFromNumberOrPodName) {
  EXPECT_EQ(ParseRank("0"), 0);
  EXPECT_EQ(ParseRank("ballast-server-12"), 12);
  EXPECT_EQ(ParseRank("ballast-server"), -1);
  EXPECT_EQ(ParseRank(""), -1);
  EXPECT_EQ(ParseRank("-1"), -1);
  EXPECT_EQ(ParseRank("99999999999"), -1);
}

}  // namespace

}  // namespace ballast
