// SPDX-License-Identifier: Apache-2.0
#include "cli/command/binary_finder.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace ballast {
namespace {

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

}  // namespace
}  // namespace ballast
