// SPDX-License-Identifier: Apache-2.0
#include "cli/sweep/value_grid.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns each point's settings as one text.
std::vector<std::string> Grid(const std::vector<std::string>& settings) {
  const auto points = MakeGrid(settings);
  EXPECT_TRUE(points.ok()) << points.status();
  std::vector<std::string> texts;
  for (const GridPoint& point : points.value_or(std::vector<GridPoint>())) {
    texts.push_back(absl::StrJoin(point.settings, " ", absl::PairFormatter("=")));
  }
  return texts;
}

std::vector<std::string> Names(const std::vector<std::string>& settings) {
  std::vector<std::string> names;
  const auto points = MakeGrid(settings);
  EXPECT_TRUE(points.ok()) << points.status();
  for (const GridPoint& point : points.value_or(std::vector<GridPoint>())) names.push_back(point.name);
  return names;
}

TEST(ValueGridTest, CombinesAllValuesTheLastSettingFastest) {
  EXPECT_THAT(Grid({"a.rate=0.1,0.2", "b=x", "c.units=8, 16"}),
              ElementsAre("a.rate=0.1 b=x c.units=8", "a.rate=0.1 b=x c.units=16", "a.rate=0.2 b=x c.units=8",
                          "a.rate=0.2 b=x c.units=16"));
}

TEST(ValueGridTest, IsOnePointWithoutSettings) {
  EXPECT_THAT(Grid({}), ElementsAre(""));
  EXPECT_THAT(Names({"a=1"}), ElementsAre(""));
}

TEST(ValueGridTest, NamesAPointAfterWhatDiffers) {
  EXPECT_THAT(Names({"optimizer.sgd.rate=0.1,0.2", "seed=4"}), ElementsAre("rate=0.1", "rate=0.2"));
  EXPECT_THAT(Names({"a.units=1,2", "b.units=3,4"}),
              ElementsAre("a.units=1 b.units=3", "a.units=1 b.units=4", "a.units=2 b.units=3", "a.units=2 b.units=4"));
}

TEST(ValueGridTest, KeepsCommasInQuotesAndBrackets) {
  EXPECT_THAT(Grid({"kernel=[3,5],[5,5]"}), ElementsAre("kernel=[3,5]", "kernel=[5,5]"));
  EXPECT_THAT(Grid({"path=\"a,b\",'c,d'"}), ElementsAre("path=\"a,b\"", "path='c,d'"));
  EXPECT_THAT(Grid({"policy=sync { quorum: 1, deterministic: true }"}),
              ElementsAre("policy=sync { quorum: 1, deterministic: true }"));
  EXPECT_THAT(Grid({R"(path="a\",b",c)"}), ElementsAre(R"(path="a\",b")", "path=c"));
  EXPECT_THAT(Grid({"path=\"]\",b"}), ElementsAre("path=\"]\"", "path=b"));
  EXPECT_THAT(Grid({"text=a=b"}), ElementsAre("text=a=b"));
}

TEST(ValueGridTest, RefusesSettingsThatMakeNoGrid) {
  std::string thousand = "a=0";
  for (int i = 1; i < 1000; ++i) absl::StrAppend(&thousand, ",", i);
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"rate"}, "flag --set: got \"rate\", want FIELD=VALUE"},
      {{"=1"}, "want FIELD=VALUE"},
      {{"rate="}, "want a value before and after each comma"},
      {{"rate=1,,2"}, "want a value before and after each comma"},
      {{"rate=1,"}, "want a value before and after each comma"},
      {{"kernel=[3,5"}, "want a closing ]"},
      {{"path=\"a"}, "want a closing \""},
      {{"rate=1", "rate=2"}, "rate is set twice"},
      {{"rate=1,1"}, "got \"rate=1\", want each value once"},
      {{thousand, "b=1,2"}, "want at most 1000 runs, not 2000"},
  };
  for (const auto& [settings, message] : cases) {
    const absl::Status status = MakeGrid(settings).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << settings[0];
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace ballast
