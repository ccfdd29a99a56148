// SPDX-License-Identifier: Apache-2.0
#include "cli/report/chart_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ballast {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Labels(const ChartScale& scale) {
  std::vector<std::string> labels;
  for (double tick : scale.ticks()) labels.push_back(scale.Label(tick));
  return labels;
}

TEST(ChartScaleTest, RoundedEndsAtTheTicksAroundTheData) {
  const ChartScale scale = ChartScale::Rounded(0.24, 2.31, AxisFormat::kNumber);
  EXPECT_THAT(Labels(scale), ElementsAre("0", "0.5", "1.0", "1.5", "2.0", "2.5"));
  EXPECT_EQ(scale.Fraction(0), 0);
  EXPECT_EQ(scale.Fraction(2.5), 1);
  EXPECT_EQ(scale.Fraction(1.25), 0.5);
}

TEST(ChartScaleTest, ExactEndsAtTheData) {
  const ChartScale scale = ChartScale::Exact(10, 4700, AxisFormat::kWhole);
  EXPECT_EQ(scale.Fraction(10), 0);
  EXPECT_EQ(scale.Fraction(4700), 1);
  EXPECT_THAT(scale.ticks(), ElementsAre(1000, 2000, 3000, 4000));
}

TEST(ChartScaleTest, WholeNumbersHaveNoTicksBetweenThem) {
  EXPECT_THAT(Labels(ChartScale::Exact(1, 3, AxisFormat::kWhole)), ElementsAre("1", "2", "3"));
  EXPECT_THAT(Labels(ChartScale::Exact(1, 1, AxisFormat::kWhole)), ElementsAre("1"));
}

TEST(ChartScaleTest, PerCentHasAsManyDecimalsAsItsStepNeeds) {
  EXPECT_THAT(Labels(ChartScale::Rounded(0.81, 0.896, AxisFormat::kPercent)),
              ElementsAre("80%", "82%", "84%", "86%", "88%", "90%"));
  EXPECT_THAT(Labels(ChartScale::Rounded(0.891, 0.893, AxisFormat::kPercent)),
              ElementsAre("89.10%", "89.15%", "89.20%", "89.25%", "89.30%"));
}

TEST(ChartScaleTest, ThousandsAndMillionsGetALetter) {
  EXPECT_THAT(Labels(ChartScale::Rounded(0, 15000, AxisFormat::kNumber)), ElementsAre("0", "5k", "10k", "15k"));
  EXPECT_THAT(Labels(ChartScale::Rounded(0, 5e6, AxisFormat::kNumber)), ElementsAre("0", "1M", "2M", "3M", "4M", "5M"));
  EXPECT_THAT(Labels(ChartScale::Rounded(0, 500, AxisFormat::kNumber)),
              ElementsAre("0", "100", "200", "300", "400", "500"));
}

TEST(ChartScaleTest, OneValueLiesInTheMiddle) {
  EXPECT_EQ(ChartScale::Exact(10, 10, AxisFormat::kNumber).Fraction(10), 0.5);
  EXPECT_EQ(ChartScale::Exact(0, 0, AxisFormat::kNumber).Fraction(0), 0.5);
}

TEST(ChartScaleTest, LogarithmicHasATickForEachDecade) {
  const ChartScale scale = ChartScale::Logarithmic(0.002, 2.4, AxisFormat::kNumber);
  EXPECT_THAT(Labels(scale), ElementsAre("0.01", "0.1", "1"));
  EXPECT_NEAR(scale.Fraction(0.1) - scale.Fraction(0.01), scale.Fraction(1) - scale.Fraction(0.1), 1e-12);
  EXPECT_TRUE(std::isnan(scale.Fraction(0)));
}

TEST(ChartScaleTest, LogarithmicOfLittleSpanHasTicksBetweenDecades) {
  EXPECT_THAT(Labels(ChartScale::Logarithmic(0.1, 2.2, AxisFormat::kNumber)),
              ElementsAre("0.1", "0.2", "0.5", "1", "2"));
}

TEST(ChartScaleTest, HugeAndTinyAndNeighbouringValuesHaveFewTicksToo) {
  for (auto [low, high] : {std::pair(-1e150, 1e150), {0.0, 5e-310}, {1e15, 1e15 + 2}, {-3.0, 1e12}}) {
    for (AxisFormat format : {AxisFormat::kNumber, AxisFormat::kWhole, AxisFormat::kPercent}) {
      const ChartScale scale = ChartScale::Rounded(low, high, format);
      EXPECT_LE(scale.ticks().size(), 11) << low;
      for (const std::string& label : Labels(scale)) EXPECT_LE(label.size(), 12) << label;
      EXPECT_GE(scale.Fraction(low), -1e-8) << low;
      EXPECT_LE(scale.Fraction(high), 1 + 1e-8) << low;
    }
  }
}

}  // namespace
}  // namespace ballast
