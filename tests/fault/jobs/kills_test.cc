// SPDX-License-Identifier: Apache-2.0
// The short form of killed workers, and of servers killed in the middle of a job's checkpoint.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/jobs/job_faults.h"

namespace ballast {
namespace {

std::string EmptyFolder(absl::string_view name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

class WorkerKillsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(WorkerKillsTest, TheOthersGoOnAndLoseNothing) {
  const auto counts = KillWorkers({.server = std::filesystem::absolute("server/ballast_server"),
                                   .worker = std::filesystem::absolute("worker/ballast_worker"),
                                   .folder = EmptyFolder(absl::StrCat("worker-kills-", GetParam())),
                                   .policy = absl::StrCat(GetParam(), " {}"),
                                   .rounds = 3});
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->rounds, 3u);
  EXPECT_EQ(counts->others_seconds.size(), 3u);
  EXPECT_EQ(counts->return_seconds.size(), 3u);
  EXPECT_GT(counts->pushes_accepted, 0u);
  EXPECT_EQ(counts->pushes_lost, 0u);
  EXPECT_EQ(counts->pushes_duplicated, 0u);
  EXPECT_EQ(counts->pushes_missing, 0u);
  EXPECT_EQ(counts->hangs, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, WorkerKillsTest, ::testing::Values("sync", "async"),
                         [](const auto& policy) { return policy.param; });

TEST(CheckpointKillsTest, TheOldOrTheNewOneIsWholeAndTheJobGoesOnFromIt) {
  const auto counts = KillInCheckpoints({.ballast = std::filesystem::absolute("cli/ballast"),
                                         .server = std::filesystem::absolute("server/ballast_server"),
                                         .worker = std::filesystem::absolute("worker/ballast_worker"),
                                         .folder = EmptyFolder("checkpoint-kills"),
                                         .rounds = 5});
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->rounds, 5u);
  EXPECT_EQ(counts->wrong, 0u) << counts->first_wrong;
  EXPECT_EQ(counts->old_left + counts->new_left, 5u);
  EXPECT_EQ(counts->resumed, 4u);
}

}  // namespace
}  // namespace ballast
