// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/overload/overload.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(OverloadTest, TenTimesTheBudgetIsRefusedInAHardMemoryLimit) {
  OverloadOptions options;
  options.server = "server/ballast_server";
  options.time = absl::Seconds(5);
  const absl::StatusOr<OverloadCounts> counts = RunOverload(options);
  if (absl::IsUnavailable(counts.status()) && counts.status().message().find("control group") == 3) {
    GTEST_SKIP() << counts.status().message();
  }
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_FALSE(counts->killed);
  EXPECT_GT(counts->refused, 0u);
  EXPECT_GT(counts->calls, 0u);
  EXPECT_LE(counts->peak_bytes, counts->limit_bytes);
  RecordProperty("peak_mib", static_cast<int>(counts->peak_bytes >> 20));
  RecordProperty("limit_mib", static_cast<int>(counts->limit_bytes >> 20));
}

}  // namespace
}  // namespace ballast
