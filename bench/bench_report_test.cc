// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_report.h"

#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
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

Arguments Given(const std::string& value) {
  return Arguments::Parse({{"flag", "VALUE", ""}}, {"--flag", value}).value();
}

Arguments Nothing() { return Arguments::Parse({{"flag", "VALUE", ""}}, {}).value(); }

TEST(BenchFlagsTest, TakesSizesWithAndWithoutUnits) {
  EXPECT_THAT(GetSizes(Given("4,4KiB,16MiB,1GiB"), "flag", "8").value(), ElementsAre(4, 4096, 16777216, 1073741824));
  EXPECT_THAT(GetSizes(Nothing(), "flag", "8").value(), ElementsAre(8));
}

TEST(BenchFlagsTest, RefusesSizesThatAreNoTensors) {
  for (const char* bad : {"", "0", "6", "4kb", "2GiB", "4KiB,,8", "-4", "18446744073709551615GiB"}) {
    EXPECT_FALSE(GetSizes(Given(bad), "flag", "8").ok()) << bad;
  }
  EXPECT_EQ(GetSizes(Given("4KiB,6"), "flag", "8").status().message(),
            "flag --flag: got \"6\", want comma-separated sizes from 4 bytes to 1GiB, multiples of 4: 4KiB,1MiB");
}

TEST(BenchFlagsTest, TakesCountsWithinTheirRange) {
  EXPECT_THAT(GetCounts(Given("1,8"), "flag", "2", 8).value(), ElementsAre(1, 8));
  EXPECT_FALSE(GetCounts(Given("0"), "flag", "2", 8).ok());
  EXPECT_EQ(GetCounts(Given("1,9"), "flag", "2", 8).status().message(),
            "flag --flag: got \"9\", want comma-separated numbers from 1 to 8: 1,2,4");
}

TEST(BenchFlagsTest, TakesNamesInTheirOwnOrder) {
  EXPECT_THAT(GetNames(Given("c,a"), "flag", {"a", "b", "c"}).value(), ElementsAre("a", "c"));
  EXPECT_THAT(GetNames(Nothing(), "flag", {"a", "b"}).value(), ElementsAre("a", "b"));
  EXPECT_EQ(GetNames(Given("a,d"), "flag", {"a", "b"}).status().message(), "flag --flag: got \"d\", want any of a,b");
}

TEST(BenchFlagsTest, WritesSizesInTheLargestUnitThatFits) {
  EXPECT_EQ(FormatSize(4), "4 B");
  EXPECT_EQ(FormatSize(4096), "4 KiB");
  EXPECT_EQ(FormatSize(5000), "5000 B");
  EXPECT_EQ(FormatSize(uint64_t{256} << 20), "256 MiB");
}

TEST(ConcludeTest, EndsWithTheJsonObjectWhereItIsAskedFor) {
  BenchReport report;
  report.benchmark = "apply";
  std::ostringstream plain, with_json, err;
  EXPECT_EQ(Conclude(report, false, plain, err), 0);
  EXPECT_EQ(Conclude(report, true, with_json, err), 0);
  EXPECT_EQ(with_json.str().substr(0, with_json.str().rfind('\n', with_json.str().size() - 2) + 1), plain.str());
  EXPECT_EQ(err.str(), "");
}

TEST(ConcludeTest, SaysWhyThereIsNoReport) {
  std::ostringstream out, err;
  EXPECT_EQ(Conclude(absl::UnavailableError("server 0: gone"), true, out, err), 1);
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(err.str(), "error: server 0: gone\n");
}

}  // namespace
}  // namespace ballast
