// SPDX-License-Identifier: Apache-2.0
#include "common/run/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/storage/file.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

std::string NewPath(const std::string& name) {
  const std::string path = testing::TempDir() + "/run_folder_test_" + name;
  std::filesystem::remove_all(path);
  return path;
}

TEST(RunFolderTest, NamesItsFiles) {
  const RunFolder folder("runs/a/");
  EXPECT_EQ(folder.path(), "runs/a");
  EXPECT_EQ(folder.metrics(), "runs/a/metrics.jsonl");
  EXPECT_EQ(folder.summary(), "runs/a/summary.json");
  EXPECT_EQ(folder.model(), "runs/a/model.safetensors");
  EXPECT_EQ(folder.report(), "runs/a/report.html");
  EXPECT_EQ(folder.job(), "runs/a/job.textproto");
}

TEST(RunFolderTest, MakesTheFoldersAboveIt) {
  const std::string path = NewPath("nested") + "/a/b";
  ASSERT_TRUE(RunFolder::Create(path).ok());
  EXPECT_TRUE(std::filesystem::is_directory(path));
}

TEST(RunFolderTest, TakesAFolderThatHoldsNoRunYet) {
  const std::string path = NewPath("existing");
  ASSERT_TRUE(RunFolder::Create(path).ok());
  ASSERT_TRUE(WriteFileAtomically(path + "/job.textproto", {"name: \"a\""}).ok());
  EXPECT_TRUE(RunFolder::Create(path).ok());
}

TEST(RunFolderTest, RefusesToOverwriteARun) {
  const std::string path = NewPath("run");
  const RunFolder folder = RunFolder::Create(path).value();
  ASSERT_TRUE(WriteFileAtomically(folder.metrics(), {""}).ok());
  const absl::Status status = RunFolder::Create(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr(path + ": already holds a run (metrics.jsonl)"));
}

TEST(RunFolderTest, RefusesAFileAndAnEmptyPath) {
  const std::string path = NewPath("file");
  ASSERT_TRUE(WriteFileAtomically(path, {"x"}).ok());
  EXPECT_THAT(RunFolder::Create(path).status().message(), HasSubstr(path));
  EXPECT_THAT(RunFolder::Create(path + "/below").status().message(), HasSubstr(path + "/below"));
  EXPECT_EQ(RunFolder::Create("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RunFolderTest, DefaultNameHoldsTheJobAndTheTimeInUtc) {
  const std::string parent = NewPath("default");
  const absl::Time now = absl::FromUnixSeconds(1700000000);
  EXPECT_EQ(RunFolder::CreateUnder(parent, "fashion", now).value().path(), parent + "/fashion-20231114T221320Z");
}

TEST(RunFolderTest, TwoRunsWithinOneSecondGetTwoFolders) {
  const std::string parent = NewPath("same_second");
  const absl::Time now = absl::FromUnixSeconds(1700000000);
  ASSERT_TRUE(RunFolder::CreateUnder(parent, "fashion", now).ok());
  EXPECT_EQ(RunFolder::CreateUnder(parent, "fashion", now).value().path(), parent + "/fashion-20231114T221320Z-2");
}

}  // namespace
}  // namespace ballast
