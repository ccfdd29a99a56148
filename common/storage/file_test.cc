// SPDX-License-Identifier: Apache-2.0
#include "common/storage/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace ballast {
namespace {

using ::testing::HasSubstr;

std::string Folder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/file_test_" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

int FilesIn(const std::string& folder) {
  const std::filesystem::directory_iterator files(folder);
  return std::distance(begin(files), end(files));
}

TEST(FileTest, WritesThePartsInTheirOrderAndReadsThemBack) {
  const std::string path = Folder("parts") + "/a";
  ASSERT_TRUE(WriteFileAtomically(path, {"one ", "", "two\n"}).ok());
  EXPECT_EQ(ReadFile(path).value(), "one two\n");
}

TEST(FileTest, ReplacesAnOlderFileAndLeavesNothingElse) {
  const std::string folder = Folder("replace");
  ASSERT_TRUE(WriteFileAtomically(folder + "/a", {"a long old content"}).ok());
  ASSERT_TRUE(WriteFileAtomically(folder + "/a", {"new"}).ok());
  EXPECT_EQ(ReadFile(folder + "/a").value(), "new");
  EXPECT_EQ(FilesIn(folder), 1);
}

TEST(FileTest, FailedReplacementLeavesNoTemporaryFile) {
  const std::string folder = Folder("failed");
  std::filesystem::create_directories(folder + "/a/not_empty");
  EXPECT_FALSE(WriteFileAtomically(folder + "/a", {"new"}).ok());
  EXPECT_EQ(FilesIn(folder), 1);
}

TEST(FileTest, NamesThePathOfAMissingFolder) {
  const absl::Status status = WriteFileAtomically("/nonexistent/folder/a", {"x"});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("/nonexistent/folder/a"));
}

TEST(FileTest, SaysThatTheDiskIsFull) {
  const int fd = open("/dev/full", O_WRONLY);
  ASSERT_GE(fd, 0);
  const absl::Status status = WriteAll(fd, "x", "metrics.jsonl");
  close(fd);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("metrics.jsonl"));
}

TEST(FileTest, ReadingAMissingFileIsNotFoundAndAFolderIsRefused) {
  EXPECT_EQ(ReadFile("/nonexistent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadFile("/").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
