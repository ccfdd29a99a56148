// SPDX-License-Identifier: Apache-2.0
#include "cli/data/data_command.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/storage/file.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class DataCommandTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }

  int Run(const std::vector<std::string>& args) {
    out_.str("");
    err_.str("");
    return DataCommand(args, out_, err_);
  }

  std::vector<std::string> Lines(const std::string& name) const {
    const auto text = ReadFile(absl::StrCat(folder_, "/", name));
    EXPECT_TRUE(text.ok()) << text.status();
    return absl::StrSplit(text.value_or(""), '\n', absl::SkipEmpty());
  }

  const std::string folder_ =
      absl::StrCat(testing::TempDir(), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
  std::ostringstream out_, err_;
};

TEST_F(DataCommandTest, WritesLinesOfCriteosFormat) {
  ASSERT_EQ(Run({"ctr", folder_, "--rows", "2000", "--test_rows", "500"}), kExitSuccess) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("test.tsv: 500 rows"));
  EXPECT_EQ(Lines("train.tsv").size(), 2000u);
  EXPECT_EQ(Lines("test.tsv").size(), 500u);
  bool missing_number = false, missing_category = false;
  for (const std::string& line : Lines("train.tsv")) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    ASSERT_EQ(fields.size(), 40u) << line;
    EXPECT_THAT(fields[0], MatchesRegex("0|1"));
    for (int i = 1; i < 14; ++i) EXPECT_THAT(fields[i], MatchesRegex("[0-9]*"));
    for (int i = 14; i < 40; ++i) EXPECT_THAT(fields[i], MatchesRegex("([0-9a-f]{8})?"));
    for (int i = 1; i < 14; ++i) missing_number = missing_number || fields[i].empty();
    for (int i = 14; i < 40; ++i) missing_category = missing_category || fields[i].empty();
  }
  EXPECT_TRUE(missing_number && missing_category);
}

TEST_F(DataCommandTest, TellsTheBestAucOfTheTestRows) {
  ASSERT_EQ(Run({"ctr", folder_, "--rows", "1000", "--test_rows", "20000", "--json"}), kExitSuccess) << err_.str();
  const auto printed = nlohmann::json::parse(out_.str());
  EXPECT_NEAR(printed["bayes_auc"], 0.805, 0.015);
  EXPECT_NEAR(printed["click_rate"], 0.256, 0.02);
  EXPECT_EQ(printed["train_rows"], 1000);
  ASSERT_EQ(Lines("truth.json").size(), 1u);
  EXPECT_EQ(nlohmann::json::parse(Lines("truth.json")[0]), printed);
}

TEST_F(DataCommandTest, WritesTheSameRowsAgain) {
  ASSERT_EQ(Run({"ctr", folder_ + "/a", "--rows", "500", "--test_rows", "100"}), kExitSuccess);
  ASSERT_EQ(Run({"ctr", folder_ + "/b", "--rows", "500", "--test_rows", "100"}), kExitSuccess);
  ASSERT_EQ(Run({"ctr", folder_ + "/c", "--rows", "500", "--test_rows", "100", "--seed", "2"}), kExitSuccess);
  EXPECT_EQ(Lines("a/train.tsv"), Lines("b/train.tsv"));
  EXPECT_EQ(Lines("a/test.tsv"), Lines("b/test.tsv"));
  EXPECT_NE(Lines("a/test.tsv"), Lines("c/test.tsv"));
}

TEST_F(DataCommandTest, LeavesADirectoryWithFilesAlone) {
  ASSERT_EQ(Run({"ctr", folder_, "--rows", "10", "--test_rows", "10"}), kExitSuccess);
  EXPECT_EQ(Run({"ctr", folder_, "--rows", "20", "--test_rows", "10"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("has files already; want a new or an empty directory"));
  EXPECT_EQ(Lines("train.tsv").size(), 10u);
}

TEST_F(DataCommandTest, RefusesBadFlags) {
  const struct {
    std::vector<std::string> args;
    const char* error;
  } cases[] = {
      {{}, "data: got nothing, want the kind of data: ctr"},
      {{"images", "x"}, "data: got images, want the kind of data: ctr"},
      {{"ctr"}, "data ctr: got 0 directories, want exactly one"},
      {{"ctr", "a", "b"}, "data ctr: got 2 directories, want exactly one"},
      {{"ctr", "a", "--rows", "0"}, "--rows"},
      {{"ctr", "a", "--drift", "2"}, "flag --drift: got \"2\", want a number from 0 to 1"},
      {{"ctr", "a", "--click_rate", "x"}, "flag --click_rate: got \"x\", want a number from 0.001 to 0.999"},
      {{"ctr", "a", "--deviation", "nan"}, "flag --deviation: got \"nan\", want a number from 0.1 to 5"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Run(c.args), kExitBadInput) << c.error;
    EXPECT_THAT(err_.str(), HasSubstr(c.error));
  }
}

}  // namespace
}  // namespace ballast
