// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_report.h"

#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

BenchReport Report() {
  BenchReport report;
  report.benchmark = "transfer";
  report.settings = {{"seconds", 2.5}};
  report.rows.push_back({{"bytes", 4096}});
  report.ratios = {{"push_to_tcp", 0.7, 0.65, false, "push, of TCP"}, {"to_empty_call", 1.3, 1.2, true, "a call"}};
  report.notes = {"no \"peer\""};
  return report;
}

TEST(BenchReportTest, PutsAllIntoOneLineOfJson) {
  const std::string text = Report().ToJson();
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  const Json json = Json::parse(text);
  EXPECT_EQ(json["benchmark"], "transfer");
  EXPECT_EQ(json["settings"]["seconds"], 2.5);
  EXPECT_EQ(json["rows"][0]["bytes"], 4096);
  EXPECT_EQ(json["ratios"]["push_to_tcp"], 0.7);
  EXPECT_EQ(json["wanted"]["push_to_tcp"]["at_least"], 0.65);
  EXPECT_EQ(json["wanted"]["push_to_tcp"]["reached"], true);
  EXPECT_EQ(json["wanted"]["to_empty_call"]["at_most"], 1.2);
  EXPECT_EQ(json["wanted"]["to_empty_call"]["reached"], false);
  EXPECT_EQ(json["notes"][0], "no \"peer\"");
  EXPECT_GE(json["machine"]["cores"], 1);
}

TEST(BenchReportTest, SaysWhichRatiosWereMissed) {
  std::ostringstream out;
  Report().PrintConclusion(out);
  EXPECT_THAT(out.str(), HasSubstr("0.700, want at least 0.65\n"));
  EXPECT_THAT(out.str(), HasSubstr("1.300, want at most 1.2  (missed)\n"));
  EXPECT_THAT(out.str(), HasSubstr("note: no \"peer\"\n"));
}

TEST(MedianTest, IsTheMiddleOrBetweenTheTwoInTheMiddle) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({5, 1, 100}), 5);
  EXPECT_EQ(Median({4, 1, 2, 100}), 3);
}

TEST(PercentileTest, IsTheSmallestThatTheShareDoesNotExceed) {
  EXPECT_EQ(Percentile({}, 0.5), 0);
  EXPECT_EQ(Percentile({7}, 0.99), 7);
  EXPECT_EQ(Percentile({4, 3, 2, 1}, 0.5), 2);
  EXPECT_EQ(Percentile({4, 3, 2, 1}, 0.99), 4);
  EXPECT_EQ(Percentile({4, 3, 2, 1}, 0), 1);
}

}  // namespace
}  // namespace ballast
