// SPDX-License-Identifier: Apache-2.0
#include "common/run/run_folder.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "common/storage/file.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class RunFolderTest : public testing::Test {
 protected:
  RunFolderTest() { std::filesystem::remove_all(path_); }

  const std::string path_ = testing::TempDir() + "/run_folder_test";
  const absl::Time now_ = absl::FromUnixSeconds(1700000000);
};

TEST_F(RunFolderTest, NamesItsFiles) {
  const RunFolder folder("runs/a/");
  EXPECT_EQ(folder.path(), "runs/a");
  EXPECT_EQ(folder.metrics(), "runs/a/metrics.jsonl");
  EXPECT_EQ(folder.summary(), "runs/a/summary.json");
  EXPECT_EQ(folder.model(), "runs/a/model.safetensors");
  EXPECT_EQ(folder.report(), "runs/a/report.html");
  EXPECT_EQ(folder.job(), "runs/a/job.textproto");
}

TEST_F(RunFolderTest, MakesTheFoldersAboveIt) {
  const std::string path = path_ + "/a/b";
  ASSERT_TRUE(RunFolder::Create(path).ok());
  EXPECT_TRUE(std::filesystem::is_directory(path));
}

TEST_F(RunFolderTest, TakesAFolderThatHoldsNoRunYet) {
  ASSERT_TRUE(RunFolder::Create(path_).ok());
  ASSERT_TRUE(WriteFileAtomically(path_ + "/job.textproto", {"name: \"a\""}).ok());
  EXPECT_TRUE(RunFolder::Create(path_).ok());
}

TEST_F(RunFolderTest, RefusesToOverwriteARun) {
  const RunFolder folder = RunFolder::Create(path_).value();
  ASSERT_TRUE(WriteFileAtomically(folder.metrics(), {""}).ok());
  const absl::Status status = RunFolder::Create(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr(path_ + ": already holds a run (metrics.jsonl)"));
}

TEST_F(RunFolderTest, RefusesAFileAndAnEmptyPath) {
  ASSERT_TRUE(WriteFileAtomically(path_, {"x"}).ok());
  EXPECT_THAT(RunFolder::Create(path_).status().message(), HasSubstr(path_));
  EXPECT_THAT(RunFolder::Create(path_ + "/below").status().message(), HasSubstr(path_ + "/below"));
  EXPECT_EQ(RunFolder::Create("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RunFolderTest, NamesADirectoryThatCannotBeWritten) {
  // Nobody can make directories in /proc.
  EXPECT_EQ(RunFolder::Create("/proc/run").status().message(),
            "cannot write the run directory /proc/run (--run_dir names another one): No such file or directory");
  EXPECT_THAT(RunFolder::CreateUnder("/proc", "fashion", now_).status().message(),
              HasSubstr("cannot write the run directory /proc/fashion-20231114T221320Z (--run_dir names another one)"));
}

TEST_F(RunFolderTest, DefaultNameHoldsTheJobAndTheTimeInUtc) {
  EXPECT_EQ(RunFolder::CreateUnder(path_, "fashion", now_).value().path(), path_ + "/fashion-20231114T221320Z");
}

TEST_F(RunFolderTest, TwoRunsWithinOneSecondGetTwoFolders) {
  ASSERT_TRUE(RunFolder::CreateUnder(path_, "fashion", now_).ok());
  EXPECT_EQ(RunFolder::CreateUnder(path_, "fashion", now_).value().path(), path_ + "/fashion-20231114T221320Z-2");
}

}  // namespace
}  // namespace ballast
