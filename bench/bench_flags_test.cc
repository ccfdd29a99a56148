// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_flags.h"

#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

Arguments Given(const std::string& value) {
  return Arguments::Parse({{"flag", "VALUE", ""}}, {"--flag", value}).value();
}

Arguments Nothing() { return Arguments::Parse({{"flag", "VALUE", ""}}, {}).value(); }

TEST(BenchFlagsTest, TakesNumbersWithinTheirRange) {
  EXPECT_EQ(GetNumber(Given("0.5"), "flag", 1, 0.1, 2).value(), 0.5);
  EXPECT_EQ(GetNumber(Nothing(), "flag", 1, 0.1, 2).value(), 1);
  for (const char* bad : {"", "x", "0.09", "2.1", "nan", "inf", "-1"}) {
    EXPECT_EQ(GetNumber(Given(bad), "flag", 1, 0.1, 2).status().message(),
              std::string("flag --flag: got \"") + bad + "\", want a number from 0.1 to 2");
  }
}

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
