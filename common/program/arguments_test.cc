// SPDX-License-Identifier: Apache-2.0
#include "common/program/arguments.h"

#include "absl/strings/cord.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

absl::StatusOr<Arguments> Parse(std::vector<std::string> words) {
  const std::vector<FlagSpec> flags = {{"servers", "N", "How many."},
                                       {"run-dir", "DIR", "Where."},
                                       {"mode", "MODE", "Which."},
                                       {"json", "", "JSON."},
                                       {"set", "X", "What.", false, true}};
  return Arguments::Parse(flags, words);
}

TEST(ArgumentsTest, TakesValuesAfterASpaceAndAfterEquals) {
  auto arguments = Parse({"job.textproto", "--servers", "3", "--run-dir=a=b", "--json"});
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_EQ(arguments->positional(), std::vector<std::string>{"job.textproto"});
  EXPECT_EQ(*arguments->GetInt("servers", 1, 1, 64), 3);
  EXPECT_EQ(arguments->Get("run-dir", ""), "a=b");
  EXPECT_TRUE(arguments->Has("json"));
  EXPECT_FALSE(arguments->help());
}

TEST(ArgumentsTest, TakesUnderscoreForDash) { EXPECT_EQ(Parse({"--run_dir", "x"})->Get("run-dir", ""), "x"); }

TEST(ArgumentsTest, AnswersTheDefaultForAFlagNotGiven) {
  EXPECT_EQ(*Parse({})->GetInt("servers", 2, 1, 64), 2);
  EXPECT_EQ(Parse({})->Get("run-dir", "runs"), "runs");
}

TEST(ArgumentsTest, TakesWordsAfterTwoDashesAsTheyAre) {
  EXPECT_EQ(Parse({"--", "--json"})->positional(), std::vector<std::string>{"--json"});
}

TEST(ArgumentsTest, KnowsHelp) {
  EXPECT_TRUE(Parse({"--help"})->help());
  EXPECT_TRUE(Parse({"-h"})->help());
}

TEST(ArgumentsTest, NamesTheNearestFlag) {
  EXPECT_EQ(Parse({"--sevrers=2"}).status().message(), "unknown flag --sevrers; did you mean \"--servers\"?");
  EXPECT_EQ(Parse({"--xyzzy"}).status().message(), "unknown flag --xyzzy; see --help");
}

TEST(ArgumentsTest, AnUnknownFlagIsThePayloadOfItsError) {
  const absl::Status status = Parse({"--set", "a", "--learning_rate=3"}).status();
  EXPECT_EQ(status.GetPayload(kUnknownFlag), absl::Cord("learning_rate"));
  EXPECT_EQ(Parse({"--servers"}).status().GetPayload(kUnknownFlag), absl::nullopt);
}

TEST(ArgumentsTest, ARepeatedFlagHasAllItsValues) {
  EXPECT_EQ(Parse({"--set", "b=1", "--set=a"})->GetAll("set"), (std::vector<std::string>{"b=1", "a"}));
  EXPECT_EQ(Parse({"--set", "b=1", "--set=a"})->Get("set", ""), "a");
  EXPECT_TRUE(Parse({})->GetAll("set").empty());
}

TEST(ArgumentsTest, RefusesWrongUseOfAFlag) {
  EXPECT_EQ(Parse({"--servers"}).status().message(), "flag --servers wants a value: N");
  EXPECT_EQ(Parse({"--json=yes"}).status().message(), "flag --json takes no value");
  EXPECT_EQ(Parse({"--json", "--json"}).status().message(), "flag --json is given twice");
}

TEST(ArgumentsTest, RefusesNumbersOutOfRange) {
  for (const char* text : {"0", "65", "two", "", "1.5", "99999999999"}) {
    EXPECT_EQ(Parse({"--servers", text})->GetInt("servers", 1, 1, 64).status().message(),
              std::string("flag --servers: got \"") + text + "\", want a number from 1 to 64");
  }
}

TEST(ArgumentsTest, TakesNumbersWithinTheirRange) {
  EXPECT_EQ(*Parse({"--servers", "0.5"})->GetNumber("servers", 1, 0.1, 2), 0.5);
  EXPECT_EQ(*Parse({})->GetNumber("servers", 1, 0.1, 2), 1);
  for (const char* bad : {"", "x", "0.09", "2.1", "nan", "inf", "-1"}) {
    EXPECT_EQ(Parse({"--servers", bad})->GetNumber("servers", 1, 0.1, 2).status().message(),
              std::string("flag --servers: got \"") + bad + "\", want a number from 0.1 to 2");
  }
}

TEST(ArgumentsTest, RefusesWhatIsNoChoice) {
  EXPECT_EQ(*Parse({"--mode=async"})->GetChoice("mode", "", {"sync", "async"}), "async");
  EXPECT_EQ(*Parse({})->GetChoice("mode", "", {"sync", "async"}), "");
  EXPECT_EQ(Parse({"--mode=fast"})->GetChoice("mode", "", {"sync", "async"}).status().message(),
            "flag --mode: got \"fast\", want sync or async");
}

}  // namespace
}  // namespace ballast
