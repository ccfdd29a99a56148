// SPDX-License-Identifier: Apache-2.0
#include "common/run/launch_record.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "common/storage/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixMillis(1795363200125);

class LaunchRecordTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::string folder_;
};

TEST_F(LaunchRecordTest, SaysThatALaunchRunsUntilItEnds) {
  std::optional<LaunchRecord> record(std::move(LaunchRecord::Create(folder_, kStart)).value());
  const auto running = LaunchRecord::Read(folder_);
  ASSERT_TRUE(running.ok()) << running.status();
  EXPECT_EQ(running->started, kStart);
  EXPECT_TRUE(running->running);
  EXPECT_EQ(running->exit_status, std::nullopt);
  ASSERT_TRUE(record->End(1, "worker 0 ended with status 1").ok());
  EXPECT_TRUE(LaunchRecord::Read(folder_)->running);
  record.reset();
  const auto ended = LaunchRecord::Read(folder_);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_FALSE(ended->running);
  EXPECT_EQ(ended->exit_status, 1);
  EXPECT_EQ(ended->error, "worker 0 ended with status 1");
}

TEST_F(LaunchRecordTest, LeavesNoEmptyFileIfTheDiskIsFull) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const absl::Status status = LaunchRecord::Create(folder_, kStart).status();
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << status;
}

TEST_F(LaunchRecordTest, TheLastEndCountsIfItsTextIsShorter) {
  auto record = LaunchRecord::Create(folder_, kStart);
  ASSERT_TRUE(record.ok()) << record.status();
  ASSERT_TRUE(record->End(1, std::string(500, 'x')).ok());
  ASSERT_TRUE(record->End(0, "").ok());
  EXPECT_EQ(LaunchRecord::Read(folder_)->exit_status, 0);
  EXPECT_EQ(LaunchRecord::Read(folder_)->error, "");
}

TEST_F(LaunchRecordTest, DoesNotTakeAKilledLaunchForARunningOne) {
  const pid_t child = fork();
  if (child == 0) {
    auto record = LaunchRecord::Create(folder_, kStart);
    raise(SIGKILL);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const auto killed = LaunchRecord::Read(folder_);
  ASSERT_TRUE(killed.ok()) << killed.status();
  EXPECT_FALSE(killed->running);
  EXPECT_EQ(killed->exit_status, std::nullopt);
}

TEST_F(LaunchRecordTest, RefusesASecondLaunchInTheSameDirectory) {
  const auto first = LaunchRecord::Create(folder_, kStart);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = LaunchRecord::Create(folder_, kStart);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("another launch is running in it"));
}

TEST_F(LaunchRecordTest, NamesWhatIsMissingOrDamaged) {
  EXPECT_EQ(LaunchRecord::Read(folder_).status().code(), absl::StatusCode::kNotFound);
  for (const char* text : {"", "{", "[]", "{}", R"({"started": 5})", R"({"started": "yesterday"})"}) {
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/launch.json", {text}).ok());
    const absl::Status status = LaunchRecord::Read(folder_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("launch.json: ")) << text;
  }
}

}  // namespace
}  // namespace ballast
