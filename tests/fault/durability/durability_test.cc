// SPDX-License-Identifier: Apache-2.0
// The short form of the faults that a shard's directory survives.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/durability/disk_faults.h"

namespace ballast {
namespace {

LostDiskOptions Losing(v1::Durability::Mode mode) {
  LostDiskOptions options;
  options.folder = absl::StrCat(testing::TempDir(), "/lost-", mode);
  options.mode = mode;
  return options;
}

TEST(LostDiskTest, WalSyncLosesNothingWhenTheMachineDies) {
  const auto counts = LoseDisks(Losing(v1::Durability::WAL_SYNC));
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->rounds, 10u);
  EXPECT_GT(counts->acknowledged, 0u);
  EXPECT_EQ(counts->lost, 0u);
  EXPECT_EQ(counts->duplicated, 0u);
}

TEST(LostDiskTest, WalLosesOneSecondAtMostWhenTheMachineDies) {
  LostDiskOptions options = Losing(v1::Durability::WAL);
  // Enough for more than a second's worth of pushes.
  options.most_pushes = 40000;
  const auto counts = LoseDisks(options);
  ASSERT_TRUE(counts.ok()) << counts.status();
  // Without a loss this proves nothing.
  EXPECT_GT(counts->lost, 0u);
  EXPECT_LE(counts->oldest_lost_seconds, 1.0);
  EXPECT_EQ(counts->duplicated, 0u);
}

TEST(DamageTest, IsRefusedOrCutOffCleanly) {
  const auto counts = DamageFolders({.folder = absl::StrCat(testing::TempDir(), "/damage")});
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->silent, 0u) << counts->first_silent;
  EXPECT_EQ(counts->refused + counts->cut + counts->unharmed, counts->bit_flips + counts->truncations);
  EXPECT_GT(counts->refused, 50u);
  EXPECT_GT(counts->cut, 0u);
}

TEST(CheckpointDeathTest, TheOldOrTheNewOneLoadsWholeAndDamageIsRefused) {
  const auto counts = DieInCheckpoints(
      {.folder = absl::StrCat(testing::TempDir(), "/checkpoints"), .deaths = 20, .bit_flips = 25, .truncations = 25});
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->wrong, 0u) << counts->first_wrong;
  EXPECT_EQ(counts->old_loaded + counts->new_loaded, 20u);
  EXPECT_GT(counts->old_loaded, 0u);
  EXPECT_GT(counts->new_loaded, 0u);
  EXPECT_EQ(counts->refused, 50u);
}

// A real server on a full disk.
class DiskFullTest : public ::testing::TestWithParam<v1::Durability::Mode> {};

TEST_P(DiskFullTest, ServesPullsRefusesPushesAndGoesOnOnceThereIsRoom) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/full-", GetParam());
  std::filesystem::create_directories(folder);
  const auto counts = FillDisks({.server = "server/ballast_server", .folder = folder, .mode = GetParam(), .rounds = 2});
  if (absl::IsUnavailable(counts.status())) GTEST_SKIP() << counts.status().message();
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->rounds, 2u);
  EXPECT_EQ(counts->pushes_refused, 4u);
  EXPECT_EQ(counts->wrong, 0u) << counts->first_wrong;
}

INSTANTIATE_TEST_SUITE_P(Modes, DiskFullTest, ::testing::Values(v1::Durability::WAL, v1::Durability::WAL_SYNC),
                         [](const auto& mode) { return v1::Durability::Mode_Name(mode.param); });

}  // namespace
}  // namespace ballast
