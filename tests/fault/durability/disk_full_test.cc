// SPDX-License-Identifier: Apache-2.0
// The short form of a server whose disk is full: it stays up, serves pulls, refuses pushes with the reason, and
// accepts them once there is space.
#include "tests/fault/durability/disk_full.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

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
