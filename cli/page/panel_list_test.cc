// SPDX-License-Identifier: Apache-2.0
#include "cli/page/panel_list.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSubsetOf;

TEST(PanelListTest, HasTheTwentyPanelsInTheirOrder) {
  std::vector<std::string> ids;
  for (const Panel& panel : Panels()) ids.push_back(panel.id);
  EXPECT_THAT(ids, ElementsAre("job", "loss", "speed", "time", "stragglers", "staleness", "steps", "latency", "traffic",
                               "links", "flight", "waits", "memory", "load", "apply", "discarded", "log", "standby",
                               "checkpoint", "model"));
}

void CheckSeries(const PanelSeries& series) {
  SCOPED_TRACE(series.metric);
  EXPECT_TRUE(absl::StartsWith(series.metric, "ballast_") || absl::StartsWith(series.metric, "process_"));
  EXPECT_THAT(series.of, AnyOf("", "shard", "worker"));
  EXPECT_FALSE(series.legend.empty());
  for (const auto& other : {series.minus, series.divide_by}) {
    if (other == nullptr) continue;
    // Each value finds its partner.
    EXPECT_THAT(other->by, IsSubsetOf(series.by));
    CheckSeries(*other);
  }
}

TEST(PanelListTest, EverySeriesIsComplete) {
  for (const Panel& panel : Panels()) {
    SCOPED_TRACE(panel.id);
    EXPECT_FALSE(panel.title.empty() || panel.help.empty() || panel.empty.empty() || panel.series.empty());
    for (const PanelSeries& series : panel.series) {
      CheckSeries(series);
      EXPECT_THAT(series.kind, AnyOf("line", "stacked", "bar", "histogram", "stat"));
      // Legends of different groups differ.
      if (series.take == PanelSeries::Take::kBuckets || series.max_over_mean) continue;
      for (const std::string& label : series.by) {
        EXPECT_TRUE(absl::StrContains(series.legend, absl::StrCat("{", label, "}"))) << series.metric << " " << label;
      }
    }
  }
}

TEST(PanelListTest, ReadsEveryKeyOfTheFile) {
  const std::set<std::string> known = {"metric", "take",      "where", "of",   "by",    "agg",    "over", "then",
                                       "minus",  "divide_by", "unit",  "kind", "chart", "legend", "extra"};
  for (const auto& panel : nlohmann::json::parse(PanelsText())) {
    for (const auto& series : panel["series"]) {
      for (const auto& [key, value] : series.items()) EXPECT_THAT(known, Contains(key));
    }
  }
}

TEST(PanelListTest, ReadsQuantilesAndSpans) {
  const std::vector<PanelSeries>& steps = Panels()[6].series;
  EXPECT_EQ(steps[0].take, PanelSeries::Take::kQuantile);
  EXPECT_EQ(steps[1].quantile, 0.99);
  EXPECT_EQ(Panels()[4].series[0].over_seconds, 300);
  EXPECT_EQ(Panels()[4].series[0].take, PanelSeries::Take::kIncrease);
}

}  // namespace
}  // namespace ballast
