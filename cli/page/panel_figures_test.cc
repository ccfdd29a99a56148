// SPDX-License-Identifier: Apache-2.0
#include "cli/page/panel_figures.h"

#include <gmock/gmock.h>

#include <cmath>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr double kNow = 1'000'000;

std::vector<MetricSample> Parse(const std::string& text) {
  return ParseMetricsText(text, [](absl::string_view) { return true; });
}

class PanelFiguresTest : public testing::Test {
 protected:
  // Two scrapes, 10 s apart.
  void Add(const std::string& process, const std::string& before, const std::string& now) {
    store_.Add(process, kNow - 10, Parse(before));
    store_.Add(process, kNow, Parse(now));
  }

  std::vector<std::pair<std::string, double>> FiguresOf(PanelSeries series) const {
    std::vector<std::pair<std::string, double>> figures;
    const std::vector<Panel> panels = {{.id = "p", .series = {std::move(series)}}};
    for (const SeriesFigures& each : Evaluate(panels, store_, kNow)) {
      for (const Figure& figure : each.figures) figures.emplace_back(figure.legend, figure.value);
    }
    return figures;
  }

  SampleStore store_;
};

using Take = PanelSeries::Take;

TEST(ParseMetricsTextTest, ReadsSamplesAndSkipsTheRest) {
  const auto samples = Parse(
      "# HELP a Text.\n# TYPE a counter\na 3\nb{x=\"1\",y=\"a\\\"b\\\\\\n,}\"} 4.5e3\nbroken\nc{x=\"1 7\nd NaN\n"
      "e{} 1 1700000000\n");
  ASSERT_THAT(samples, SizeIs(4));
  EXPECT_EQ(samples[0].value, 3);
  EXPECT_THAT(samples[1].labels, ElementsAre(Pair("x", "1"), Pair("y", "a\"b\\\n,}")));
  EXPECT_EQ(samples[1].value, 4500);
  EXPECT_TRUE(std::isnan(samples[2].value));
  EXPECT_EQ(samples[3].value, 1);
}

TEST(ParseMetricsTextTest, KeepsWantedNamesOnly) {
  EXPECT_THAT(ParseMetricsText("a 1\nab 2\n", [](absl::string_view name) { return name == "ab"; }), SizeIs(1));
}

TEST_F(PanelFiguresTest, SumsGaugesByLabel) {
  Add("server-0", "m{use=\"a\"} 0\n", "m{use=\"a\"} 1\nm{use=\"b\"} 2\n");
  Add("server-1", "m{use=\"a\"} 0\n", "m{use=\"a\"} 10\n");
  EXPECT_THAT(FiguresOf({.metric = "m", .by = {"use"}, .legend = "use {use}"}),
              ElementsAre(Pair("use a", 11), Pair("use b", 2)));
  EXPECT_THAT(FiguresOf({.metric = "m", .take = Take::kMax, .legend = "max"}), ElementsAre(Pair("max", 10)));
  EXPECT_THAT(FiguresOf({.metric = "m", .where = {{"use", "b"}}, .legend = "b"}), ElementsAre(Pair("b", 2)));
  EXPECT_THAT(FiguresOf({.metric = "absent", .legend = "x"}), IsEmpty());
}

TEST_F(PanelFiguresTest, RatesSurviveARestart) {
  store_.Add("a", kNow - 10, Parse("c 100\n"));
  store_.Add("a", kNow - 5, Parse("c 120\n"));
  store_.Add("a", kNow, Parse("c 10\n"));
  EXPECT_THAT(FiguresOf({.metric = "c", .take = Take::kRate, .legend = "c"}), ElementsAre(Pair("c", 3)));
  EXPECT_THAT(FiguresOf({.metric = "c", .take = Take::kIncrease, .over_seconds = 300, .legend = "c"}),
              ElementsAre(Pair("c", 30)));
}

TEST_F(PanelFiguresTest, OneScrapeHasNoRate) {
  store_.Add("a", kNow, Parse("c 100\n"));
  EXPECT_THAT(FiguresOf({.metric = "c", .take = Take::kRate, .legend = "c"}), IsEmpty());
}

TEST_F(PanelFiguresTest, LeavesOutProcessesThatNoLongerAnswer) {
  store_.Add("a", kNow - 30, Parse("m 1\n"));
  store_.Add("b", kNow, Parse("m 2\n"));
  EXPECT_THAT(FiguresOf({.metric = "m", .by = {"instance"}, .legend = "{instance}"}), ElementsAre(Pair("b", 2)));
}

TEST_F(PanelFiguresTest, TakesRanksFromTheInfoMetricInTheirOrder) {
  for (int rank : {10, 2}) {
    const std::string text = absl::StrCat("ballast_worker_info{worker=\"", rank, "\"} 1\nm ", rank, "\n");
    Add(absl::StrCat("w", rank), text, text);
  }
  Add("server", "m 7\n", "m 7\n");
  EXPECT_THAT(FiguresOf({.metric = "m", .of = "worker", .by = {"worker"}, .legend = "worker {worker}"}),
              ElementsAre(Pair("worker 2", 2), Pair("worker 10", 10)));
}

TEST_F(PanelFiguresTest, DividesByAGroupWithFewerLabels) {
  Add("a", "s{phase=\"x\"} 0\ns{phase=\"y\"} 0\n", "s{phase=\"x\"} 3\ns{phase=\"y\"} 1\n");
  const auto all = std::make_shared<PanelSeries>(PanelSeries{.metric = "s", .take = Take::kRate});
  EXPECT_THAT(FiguresOf({.metric = "s", .take = Take::kRate, .by = {"phase"}, .legend = "{phase}", .divide_by = all}),
              ElementsAre(Pair("x", DoubleNear(0.75, 1e-9)), Pair("y", DoubleNear(0.25, 1e-9))));
  // Nothing moves: there is no share.
  SampleStore still;
  still.Add("a", kNow - 10, Parse("s 1\n"));
  still.Add("a", kNow, Parse("s 1\n"));
  store_ = still;
  EXPECT_THAT(FiguresOf({.metric = "s", .take = Take::kRate, .legend = "s", .divide_by = all}), IsEmpty());
}

TEST_F(PanelFiguresTest, SubtractsPartners) {
  Add("a", "", "w{role=\"s\"} 3\nw{role=\"w\"} 5\nh{role=\"w\"} 2\n");
  const auto have = std::make_shared<PanelSeries>(PanelSeries{.metric = "h", .by = {"role"}});
  EXPECT_THAT(FiguresOf({.metric = "w", .by = {"role"}, .legend = "{role}", .minus = have}), ElementsAre(Pair("w", 3)));
}

TEST_F(PanelFiguresTest, InterpolatesQuantilesOverAllProcesses) {
  const std::string none = "h_bucket{le=\"1\"} 0\nh_bucket{le=\"2\"} 0\nh_bucket{le=\"+Inf\"} 0\nh_sum 0\nh_count 0\n";
  Add("a", none, "h_bucket{le=\"1\"} 10\nh_bucket{le=\"2\"} 10\nh_bucket{le=\"+Inf\"} 10\nh_sum 5\nh_count 10\n");
  Add("b", none, "h_bucket{le=\"1\"} 0\nh_bucket{le=\"2\"} 10\nh_bucket{le=\"+Inf\"} 10\nh_sum 15\nh_count 10\n");
  EXPECT_THAT(FiguresOf({.metric = "h", .take = Take::kQuantile, .quantile = 0.5, .legend = "q"}),
              ElementsAre(Pair("q", DoubleNear(1, 1e-9))));
  EXPECT_THAT(FiguresOf({.metric = "h", .take = Take::kQuantile, .quantile = 0.75, .legend = "q"}),
              ElementsAre(Pair("q", DoubleNear(1.5, 1e-9))));
  EXPECT_THAT(FiguresOf({.metric = "h", .take = Take::kMean, .legend = "mean"}), ElementsAre(Pair("mean", 1)));
  EXPECT_THAT(FiguresOf({.metric = "h", .take = Take::kBuckets, .over_seconds = 300}),
              ElementsAre(Pair("1", 10), Pair("2", 10)));
}

TEST_F(PanelFiguresTest, AgesCountFromTheNewestTime) {
  Add("a", "", absl::StrCat("t ", static_cast<int64_t>(kNow) - 30, "\n"));
  Add("b", "", absl::StrCat("t ", static_cast<int64_t>(kNow) - 50, "\nnever 0\n"));
  EXPECT_THAT(FiguresOf({.metric = "t", .take = Take::kAge, .legend = "age"}), ElementsAre(Pair("age", 30)));
  EXPECT_THAT(FiguresOf({.metric = "never", .take = Take::kAge, .legend = "age"}), IsEmpty());
}

TEST_F(PanelFiguresTest, ComparesTheLargestWithTheMean) {
  Add("a", "", "m 1\n");
  Add("b", "", "m 3\n");
  EXPECT_THAT(FiguresOf({.metric = "m", .by = {"instance"}, .max_over_mean = true, .legend = "imbalance"}),
              ElementsAre(Pair("imbalance", 1.5)));
}

TEST_F(PanelFiguresTest, AThousandWorkersHaveThreeLines) {
  std::string text;
  for (int i = 0; i < 1001; ++i) absl::StrAppend(&text, "m{worker=\"", i, "\"} ", i, "\n");
  Add("a", "", text);
  EXPECT_THAT(FiguresOf({.metric = "m", .by = {"worker"}, .legend = "{worker}", .kind = "line"}),
              ElementsAre(Pair("largest of 1001", 1000), Pair("median", 500), Pair("smallest", 0)));
  EXPECT_THAT(FiguresOf({.metric = "m", .by = {"worker"}, .legend = "{worker}", .kind = "bar"}), SizeIs(kMaxLines));
}

TEST_F(PanelFiguresTest, KeepsFiveMinutesInFewPoints) {
  for (int i = 0; i < 1000; ++i) store_.Add("a", kNow - 1000 + i, Parse(absl::StrCat("c ", i, "\n")));
  const auto series = store_.Of("c", kNow);
  ASSERT_THAT(series, SizeIs(1));
  EXPECT_LT(series[0]->points.size(), 100);
  double covered = 0;
  EXPECT_NEAR(IncreaseOf(*series[0], 300, &covered) / covered, 1, 1e-9);
  EXPECT_NEAR(covered, 300, 10);
}

}  // namespace
}  // namespace ballast
