// SPDX-License-Identifier: Apache-2.0
#include "cli/report/plot_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "common/run/run_folder.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class PlotCommandTest : public testing::Test {
 protected:
  RunFolder NewRun(const std::string& name) {
    const std::string path = testing::TempDir() + "/plot_command_test_" + name;
    std::filesystem::remove_all(path);
    const RunFolder folder = RunFolder::Create(path).value();
    EXPECT_TRUE(WriteFileAtomically(folder.metrics(), {""}).ok());
    return folder;
  }

  int Run(const std::vector<std::string>& args) { return PlotCommand(args, out_, err_); }

  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(PlotCommandTest, WritesTheReportAndPrintsItsPath) {
  const RunFolder folder = NewRun("plain");
  EXPECT_EQ(Run({folder.path() + "/"}), 0);
  EXPECT_EQ(out_.str(), folder.report() + "\n");
  EXPECT_TRUE(std::filesystem::exists(folder.report()));
  EXPECT_EQ(err_.str(), "");
}

TEST_F(PlotCommandTest, JsonIsOneObject) {
  const RunFolder folder = NewRun("json");
  EXPECT_EQ(Run({"--json", folder.path()}), 0);
  EXPECT_EQ(out_.str(), "{\"run_dir\":\"" + folder.path() + "\",\"report\":\"" + folder.report() + "\"}\n");
}

TEST_F(PlotCommandTest, HelpGoesToStandardOutput) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("usage: ballast plot RUN_DIR"));
}

TEST_F(PlotCommandTest, WrongArgumentsAreExitCodeTwoAndNamed) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_THAT(err_.str(), EndsWith("error: plot: RUN_DIR is missing\n"));
  EXPECT_EQ(Run({"a", "b"}), 2);
  EXPECT_THAT(err_.str(), EndsWith("error: plot: got a second RUN_DIR \"b\", want one\n"));
  EXPECT_EQ(Run({"--jsn", "a"}), 2);
  EXPECT_THAT(err_.str(), EndsWith("error: plot: unknown option --jsn, want --json or --help\n"));
  EXPECT_EQ(out_.str(), "");
}

TEST_F(PlotCommandTest, FolderWithoutARunIsExitCodeTwo) {
  EXPECT_EQ(Run({"/nonexistent/run"}), 2);
  EXPECT_EQ(err_.str(), "error: run directory /nonexistent/run: has neither metrics.jsonl nor summary.json\n");
}

TEST_F(PlotCommandTest, ReportThatCannotBeWrittenIsExitCodeOne) {
  const RunFolder folder = NewRun("unwritable");
  std::filesystem::create_directories(folder.report() + "/in_the_way");
  EXPECT_EQ(Run({folder.path()}), 1);
  EXPECT_THAT(err_.str(), StartsWith("error: "));
  EXPECT_THAT(err_.str(), HasSubstr("report.html"));
}

}  // namespace
}  // namespace ballast
