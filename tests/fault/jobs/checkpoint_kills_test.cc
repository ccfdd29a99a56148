// SPDX-License-Identifier: Apache-2.0
// The short form of servers killed in the middle of a job's checkpoint.
#include "tests/fault/jobs/checkpoint_kills.h"

#include <filesystem>

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(CheckpointKillsTest, TheOldOrTheNewOneIsWholeAndTheJobGoesOnFromIt) {
  const std::string folder = testing::TempDir() + "/checkpoint-kills";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto counts = KillInCheckpoints({.ballast = std::filesystem::absolute("cli/ballast"),
                                         .server = std::filesystem::absolute("server/ballast_server"),
                                         .worker = std::filesystem::absolute("worker/ballast_worker"),
                                         .folder = folder,
                                         .rounds = 5});
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->rounds, 5u);
  EXPECT_EQ(counts->wrong, 0u) << counts->first_wrong;
  EXPECT_EQ(counts->old_left + counts->new_left, 5u);
  EXPECT_EQ(counts->resumed, 4u);
}

}  // namespace
}  // namespace ballast
