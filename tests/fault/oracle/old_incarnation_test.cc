// SPDX-License-Identifier: Apache-2.0
// The short form of a worker that was cut off and replaced: its pushes arrive late and are refused.
#include "tests/fault/oracle/old_incarnation.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(OldIncarnationTest, IsRefusedWhenThePartitionHeals) {
  const auto counts = SendLatePushes({.server = "server/ballast_server", .rounds = 2, .late_pushes = 20});
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->rounds, 2u);
  EXPECT_EQ(counts->refused, 40u);
  EXPECT_EQ(counts->accepted, 0u);
  EXPECT_EQ(counts->wrong_weights, 0u);
}

}  // namespace
}  // namespace ballast
