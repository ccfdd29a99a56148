// SPDX-License-Identifier: Apache-2.0
// The short form of a large shard's standby behind a slow link, while workers push more than the link carries.
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/oracle/push_faults.h"

namespace ballast {
namespace {

TEST(BigShardTest, ItsStandbyGetsInStepUnderLoadAndHasWhatWasAcknowledged) {
  BigShardOptions options;
  options.server = "server/ballast_server";
  options.folder = absl::StrCat(testing::TempDir(), "/big-shard");
  // The transfer takes longer than the timeout for a standby that receives nothing.
  options.state_mib = 128;
  const absl::StatusOr<BigShardCounts> counts = RunBigShard(options);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_TRUE(counts->good()) << counts->ToJson();
  EXPECT_GE(counts->progress_lines, 1);
  EXPECT_GE(counts->seconds_to_step, counts->seconds_of_link);
}

}  // namespace
}  // namespace ballast
