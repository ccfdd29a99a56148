// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command/command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

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
