// SPDX-License-Identifier: Apache-2.0
// The short form of killed workers: the others continue, and nothing that they pushed is missing.
#include "tests/fault/jobs/worker_kills.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class WorkerKillsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(WorkerKillsTest, TheOthersGoOnAndLoseNothing) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/worker-kills-", GetParam());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto counts = KillWorkers({.server = std::filesystem::absolute("server/ballast_server"),
                                   .worker = std::filesystem::absolute("worker/ballast_worker"),
                                   .folder = folder,
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

}  // namespace
}  // namespace ballast
