// SPDX-License-Identifier: Apache-2.0
#include "cli/report/line_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(ChartScaleTest, LogarithmicHasAtLeastThreeTicks) {
  EXPECT_THAT(Labels(ChartScale::Logarithmic(0.05, 1.1, AxisFormat::kNumber)),
              ElementsAre("0.05", "0.1", "0.2", "0.5", "1"));
  for (double low : {1e-9, 0.0013, 0.05, 0.3, 0.9, 3.0, 700.0}) {
    for (double factor : {1.0, 1.5, 3.0, 20.0, 50.0, 1000.0, 3000.0, 1e6, 1e40}) {
      const ChartScale scale = ChartScale::Logarithmic(low, low * factor, AxisFormat::kNumber);
      EXPECT_GE(scale.ticks().size(), 3) << low << " " << factor;
      EXPECT_LE(scale.ticks().size(), 11) << low << " " << factor;
    }
  }
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

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

nlohmann::json DataOf(const std::string& html) {
  const std::string open = "<script type=\"application/json\">";
  const size_t begin = html.find(open) + open.size();
  return nlohmann::json::parse(html.substr(begin, html.find("</script>") - begin), nullptr, false);
}

LineChart Chart(std::vector<ChartPoint> points) {
  return {.title = "Loss", .x_label = "step", .series = {{.name = "train", .color = 1, .points = std::move(points)}}};
}

TEST(LineChartTest, DrawsALineInSharesOfThePlotsSize) {
  const std::string html = RenderLineChart(Chart({{0, 0}, {5, 10}, {10, 5}}));
  EXPECT_THAT(html, HasSubstr("<path class=\"line c1\" d=\"M0.0 1000.0L500.0 0.0L1000.0 500.0\"/>"));
}

TEST(LineChartTest, AxesHaveLabelledTicks) {
  const std::string html = RenderLineChart(Chart({{0, 0}, {10, 10}}));
  EXPECT_THAT(html, HasSubstr("<text class=\"y\" x=\"-10\" y=\"80.00%\" dy=\".32em\">2</text>"));
  EXPECT_THAT(html, HasSubstr("<text class=\"x\" x=\"20.00%\" y=\"100%\" dy=\"1.5em\">2</text>"));
  EXPECT_THAT(html, HasSubstr(">step</text>"));
}

TEST(LineChartTest, LegendQuotesTheLastFiniteValue) {
  EXPECT_THAT(RenderLineChart(Chart({{0, 1}, {1, 0.25}, {2, NAN}})), HasSubstr("train <b>0.25</b>"));
  LineChart chart = Chart({{0, 0.5}, {1, 0.875}});
  chart.y_format = AxisFormat::kPercent;
  EXPECT_THAT(RenderLineChart(chart), HasSubstr("train <b>87.50%</b>"));
}

TEST(LineChartTest, LegendQuotesTheFigureOfTheSeries) {
  LineChart chart = Chart({{0, 1}, {1, 0.25}});
  chart.series[0].figure = "0.5 in epoch 2 & 3";
  EXPECT_THAT(RenderLineChart(chart), HasSubstr("train <b>0.5 in epoch 2 &amp; 3</b>"));
}

TEST(LineChartTest, APointThatIsNotFiniteInterruptsTheLine) {
  const std::string html = RenderLineChart(Chart({{0, 0}, {1, 1}, {2, INFINITY}, {3, 1}, {4, 0}}));
  EXPECT_THAT(html, HasSubstr("d=\"M0.0 1000.0L250.0 0.0M750.0 0.0L1000.0 1000.0\""));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("inf")));
}

TEST(LineChartTest, OnePointIsADot) {
  const std::string html = RenderLineChart(Chart({{10, 3}}));
  EXPECT_THAT(html, HasSubstr("<circle class=\"dot c1\" cx=\"50.00%\""));
}

TEST(LineChartTest, WithoutAnyFinitePointItSaysSo) {
  EXPECT_THAT(RenderLineChart(Chart({})), HasSubstr("No points yet"));
  EXPECT_THAT(RenderLineChart(Chart({{1, NAN}})), HasSubstr("No points yet"));
  EXPECT_THAT(RenderLineChart(Chart({{1, 1e300}})), HasSubstr("No points yet"));
}

TEST(LineChartTest, DotsAreDrawnWhereAskedAndLeftOutWhereTheyWouldTouch) {
  LineChart chart = Chart({{0, 0}, {1, 1}, {2, 2}});
  EXPECT_EQ(CountOf(RenderLineChart(chart), "<circle"), 0);
  chart.series[0].dots = true;
  EXPECT_EQ(CountOf(RenderLineChart(chart), "<circle"), 3);
  for (int i = 3; i < 500; ++i) chart.series[0].points.push_back({1.0 * i, 1});
  EXPECT_EQ(CountOf(RenderLineChart(chart), "<circle"), 0);
}

TEST(LineChartTest, ThinsOutManyPointsButKeepsASpike) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 100000; ++i) points.push_back({1.0 * i, i == 54321 ? 9.0 : 1.0 + i % 2});
  const nlohmann::json data = DataOf(RenderLineChart(Chart(std::move(points))));
  const nlohmann::json& kept = data["series"][0]["points"];
  EXPECT_LE(kept.size(), 1200);
  EXPECT_TRUE(std::any_of(kept.begin(), kept.end(), [](const nlohmann::json& p) { return p[1] == 9.0; }));
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a[0] < b[0]; }));
}

TEST(LineChartTest, ASpikeInTheBackgroundDoesNotFlattenTheRest) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 1000; ++i) points.push_back({1.0 * i, i == 500 ? 1000.0 : 1.0 + i % 2});
  LineChart chart = Chart(std::move(points));
  chart.series[0].faint = true;
  EXPECT_EQ(DataOf(RenderLineChart(chart))["y"][1], 2.0);
}

TEST(LineChartTest, FromZeroIncludesZero) {
  LineChart chart = Chart({{0, 100}, {1, 104}});
  EXPECT_EQ(DataOf(RenderLineChart(chart))["y"][0], 100.0);
  chart.y_from_zero = true;
  EXPECT_EQ(DataOf(RenderLineChart(chart))["y"][0], 0.0);
}

TEST(LineChartTest, LogarithmicLeavesOutWhatHasNoLogarithm) {
  LineChart chart = Chart({{0, 1}, {1, 0}, {2, 0.01}});
  chart.logarithmic = true;
  const std::string html = RenderLineChart(chart);
  EXPECT_EQ(DataOf(html)["series"][0]["points"].size(), 2);
  EXPECT_EQ(CountOf(html, "M"), 2);
}

TEST(LineChartTest, NoNameCanLeaveItsPlace) {
  LineChart chart = Chart({{0, 1}, {1, 2}});
  chart.title = "<b>\"";
  chart.series[0].name = "</script><script>alert(1)</script>";
  const std::string html = RenderLineChart(chart);
  EXPECT_EQ(CountOf(html, "<script"), 1);
  EXPECT_EQ(CountOf(html, "</script"), 1);
  EXPECT_THAT(html, Not(HasSubstr("<b>\"")));
  EXPECT_EQ(DataOf(html)["series"][0]["name"], "</script><script>alert(1)</script>");
}

}  // namespace
}  // namespace ballast
