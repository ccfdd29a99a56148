// SPDX-License-Identifier: Apache-2.0
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/storage/file_system.h"
#include "gtest/gtest.h"

namespace {

std::atomic<int> failing_syncs{0}, failing_folder_syncs{0};

int SyncUnlessFailing(std::atomic<int>& failing, int call, int fd) {
  if (failing <= 0) return static_cast<int>(syscall(call, fd));
  --failing;
  errno = EIO;
  return -1;
}

}  // namespace

// Replaces the C library's function: Linux reports a write-back error once, to the first sync of the file.
extern "C" int fdatasync(int fd) { return SyncUnlessFailing(failing_syncs, SYS_fdatasync, fd); }

// Replaces fsync, for directories.
extern "C" int fsync(int fd) { return SyncUnlessFailing(failing_folder_syncs, SYS_fsync, fd); }

namespace ballast {
namespace {

std::unique_ptr<AppendFile> Create() {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
  EXPECT_TRUE(PosixFileSystem()->Remove(path).ok());
  return PosixFileSystem()->Create(path).value();
}

TEST(PosixFileSystemTest, EverySyncAfterOneThatFailedAnswersItsError) {
  const auto file = Create();
  ASSERT_TRUE(file->Append({"lost"}).ok());
  failing_syncs = 1;
  const absl::Status first = file->Sync();
  EXPECT_FALSE(first.ok());
  EXPECT_EQ(failing_syncs, 0);
  ASSERT_TRUE(file->Append({"more"}).ok());
  EXPECT_EQ(file->Sync(), first) << "the kernel reports an error once, and what it lost stays lost";
}

TEST(PosixFileSystemTest, AnotherFileThanTheOneThatFailedToSyncIsSynced) {
  const auto failed = Create();
  failing_syncs = 1;
  EXPECT_FALSE(failed->Sync().ok());
  EXPECT_EQ(Create()->Sync(), absl::OkStatus());
}

TEST(PosixFileSystemTest, AFileWhoseNameMayComeBackIsToldFromOneThatIsGone) {
  const std::string path = absl::StrCat(testing::TempDir(), "/name-that-does-not-last");
  failing_folder_syncs = 1;
  const absl::Status gone = PosixFileSystem()->Create(path).status();
  EXPECT_FALSE(gone.ok());
  EXPECT_NE(gone.code(), absl::StatusCode::kDataLoss);
  failing_folder_syncs = 2;
  EXPECT_EQ(PosixFileSystem()->Create(path).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(access(path.c_str(), F_OK), -1);
}

}  // namespace
}  // namespace ballast
