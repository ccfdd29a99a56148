// SPDX-License-Identifier: Apache-2.0
#include "common/storage/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ballast {
namespace {

using ::testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  int CountFiles() const {
    const std::filesystem::directory_iterator files(folder_);
    return std::distance(begin(files), end(files));
  }

  const std::string folder_ = testing::TempDir() + "/file_test";
  const std::string path_ = folder_ + "/a";
};

TEST_F(FileTest, WritesThePartsInTheirOrderAndReadsThemBack) {
  ASSERT_TRUE(WriteFileAtomically(path_, {"one ", "", "two\n"}).ok());
  EXPECT_EQ(ReadFile(path_).value(), "one two\n");
}

TEST_F(FileTest, ReplacesAnOlderFileAndLeavesNothingElse) {
  ASSERT_TRUE(WriteFileAtomically(path_, {"a long old content"}).ok());
  ASSERT_TRUE(WriteFileAtomically(path_, {"new"}).ok());
  EXPECT_EQ(ReadFile(path_).value(), "new");
  EXPECT_EQ(CountFiles(), 1);
}

TEST_F(FileTest, FailedReplacementLeavesNoTemporaryFile) {
  std::filesystem::create_directories(path_ + "/not_empty");
  EXPECT_FALSE(WriteFileAtomically(path_, {"new"}).ok());
  EXPECT_EQ(CountFiles(), 1);
}

TEST_F(FileTest, AProcessThatIsKilledWhileItWritesLeavesNothing) {
  const std::string megabyte(1 << 20, 'x');
  const std::vector<absl::string_view> parts(256, megabyte);
  const pid_t writer = fork();
  if (writer == 0) {
    (void)WriteFileAtomically(path_, parts).ok();
    _exit(0);
  }
  ASSERT_GT(writer, 0);
  const auto written = [writer] {
    std::ifstream io("/proc/" + std::to_string(writer) + "/io");
    for (std::string key; io >> key;) {
      uint64_t bytes = 0;
      io >> bytes;
      if (key == "wchar:") return bytes;
    }
    return uint64_t{0};
  };
  while (written() < (1 << 20)) sched_yield();
  kill(writer, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(writer, &status, 0), writer);
  EXPECT_TRUE(WIFSIGNALED(status)) << "it was too fast";
  EXPECT_EQ(CountFiles(), 0);
}

TEST_F(FileTest, WritesToAPipeAndLeavesIt) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const int reader = open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_TRUE(WriteFileAtomically(path_, {"one ", "two"}).ok());
  char text[16];
  EXPECT_EQ(std::string(text, std::max<ssize_t>(read(reader, text, sizeof(text)), 0)), "one two");
  close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(path_));
}

TEST_F(FileTest, NamesThePathOfAMissingFolder) {
  const absl::Status status = WriteFileAtomically("/nonexistent/folder/a", {"x"});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("/nonexistent/folder/a"));
}

TEST_F(FileTest, SaysThatTheDiskIsFull) {
  const int fd = open("/dev/full", O_WRONLY);
  ASSERT_GE(fd, 0);
  const absl::Status status = WriteAll(fd, "x", "metrics.jsonl");
  close(fd);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("metrics.jsonl"));
}

TEST_F(FileTest, ReadingAMissingFileIsNotFoundAndAFolderIsRefused) {
  EXPECT_EQ(ReadFile("/nonexistent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadFile("/").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
