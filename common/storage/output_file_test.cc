// SPDX-License-Identifier: Apache-2.0
#include "common/storage/output_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "common/storage/file.h"

namespace ballast {
namespace {

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  const std::string folder_ = testing::TempDir() + "/output_file_test";
  const std::string path_ = folder_ + "/a";
};

TEST_F(OutputFileTest, AppearsWhenItIsComplete) {
  absl::StatusOr<OutputFile> file = OutputFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Write("one ").ok());
  ASSERT_TRUE(file->Write("two").ok());
  // A process that is killed here leaves nothing.
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  ASSERT_TRUE(file->Finish().ok());
  EXPECT_EQ(ReadFile(path_).value_or(""), "one two");
}

TEST_F(OutputFileTest, LeavesAnOlderFileIfItIsNotCompleted) {
  ASSERT_TRUE(WriteFileAtomically(path_, {"old"}).ok());
  {
    absl::StatusOr<OutputFile> file = OutputFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(file->Write("new").ok());
  }
  EXPECT_EQ(ReadFile(path_).value_or(""), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(OutputFileTest, SaysThatADeviceIsFull) {
  absl::StatusOr<OutputFile> file = OutputFile::Open("/dev/full");
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status status = file->Write("x");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "/dev/full: No space left on device");
}

}  // namespace
}  // namespace ballast
