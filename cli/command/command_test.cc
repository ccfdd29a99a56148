// SPDX-License-Identifier: Apache-2.0
#include "cli/command/command.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

class BinaryFinderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/binary_finder";
    std::filesystem::remove_all(root_);
    setenv("PATH", (root_ + "/path").c_str(), 1);
    unsetenv("BALLAST_SERVER_BINARY");
  }

  std::string Place(const std::string& path, bool executable = true) {
    const std::filesystem::path place = root_ + "/" + path;
    std::filesystem::create_directories(place.parent_path());
    std::ofstream(place) << "#!/bin/sh\n";
    if (executable) std::filesystem::permissions(place, std::filesystem::perms::owner_all);
    return place.string();
  }

  std::string Find() { return FindBinary("server", root_ + "/cli/ballast").value_or("none"); }

  std::string root_;
};

TEST_F(BinaryFinderTest, PrefersTheEnvironmentThenItsOwnFolderThenBazelsThenPath) {
  EXPECT_EQ(Find(), "none");
  Place("path/ballast_server");
  EXPECT_EQ(Find(), root_ + "/path/ballast_server");
  Place("server/ballast_server");
  EXPECT_EQ(Find(), root_ + "/server/ballast_server");
  Place("cli/ballast_server");
  EXPECT_EQ(Find(), root_ + "/cli/ballast_server");
  const std::string named = Place("elsewhere/mine");
  setenv("BALLAST_SERVER_BINARY", named.c_str(), 1);
  EXPECT_EQ(named, Find());
}

TEST_F(BinaryFinderTest, PassesOverWhatIsNoProgram) {
  Place("cli/ballast_server", false);
  std::filesystem::create_directories(root_ + "/server/ballast_server");
  EXPECT_EQ(Find(), "none");
}

TEST_F(BinaryFinderTest, SaysWhereItLooked) {
  const std::string message(FindBinary("server", root_ + "/cli/ballast").status().message());
  EXPECT_NE(message.find(root_ + "/cli/ballast_server"), std::string::npos) << message;
  EXPECT_NE(message.find(root_ + "/server/ballast_server"), std::string::npos) << message;
  EXPECT_NE(message.find("BALLAST_SERVER_BINARY"), std::string::npos) << message;
}

TEST_F(BinaryFinderTest, NamesAVariableThatPointsNowhere) {
  setenv("BALLAST_SERVER_BINARY", "/nonexistent", 1);
  EXPECT_EQ(FindBinary("server", "/x/y").status().message(),
            "environment variable BALLAST_SERVER_BINARY: /nonexistent is not an executable file");
}

// Installs a script in place of ballast_bench.
std::string Place(const std::string& script) {
  const std::string path = ::testing::TempDir() + "/bench_stand_in";
  std::ofstream(path) << script;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  setenv("BALLAST_BENCH_BINARY", path.c_str(), 1);
  return path;
}

TEST(BenchCommandTest, BecomesTheProgramWithEveryWord) {
  Place("#!/bin/sh\necho \"$# [$1] [$2] [$3]\" >&2\nexit 42\n");
  std::ostringstream out, err;
  EXPECT_EXIT(BenchCommand({"transfer", "--sizes", "4KiB, 1MiB"}, out, err), ExitedWithCode(42),
              "3 \\[transfer\\] \\[--sizes\\] \\[4KiB, 1MiB\\]");
}

TEST(PredictCommandTest, BecomesTheWorkerWithTheCommandsName) {
  setenv("BALLAST_WORKER_BINARY", Place("#!/bin/sh\necho \"$# [$1] [$2] [$3]\" >&2\nexit 42\n").c_str(), 1);
  std::ostringstream out, err;
  EXPECT_EXIT(PredictCommand({"run", "--json"}, out, err), ExitedWithCode(42),
              "3 \\[predict\\] \\[run\\] \\[--json\\]");
  EXPECT_EXIT(EvalCommand({"run"}, out, err), ExitedWithCode(42), "2 \\[eval\\] \\[run\\]");
}

TEST(BenchCommandTest, SaysWhereItLookedForAMissingProgram) {
  setenv("BALLAST_BENCH_BINARY", "/nonexistent/ballast_bench", 1);
  std::ostringstream out, err;
  EXPECT_EQ(BenchCommand({"transfer"}, out, err), 1);
  EXPECT_EQ(err.str(),
            "error: environment variable BALLAST_BENCH_BINARY: /nonexistent/ballast_bench is not an executable file\n");
}

TEST(BenchCommandTest, NamesAProgramThatCannotRun) {
  const std::string path = Place("#!/nonexistent/interpreter\n");
  std::ostringstream out, err;
  EXPECT_EQ(BenchCommand({"transfer"}, out, err), 1);
  EXPECT_THAT(err.str(), HasSubstr("error: cannot run " + path));
}

}  // namespace

}  // namespace ballast
