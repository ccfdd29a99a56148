// SPDX-License-Identifier: Apache-2.0
// The short form of a pulled cable between workers and servers.
#include "gtest/gtest.h"
#include "tests/fault/network/two_hosts.h"
#include "tests/fault/oracle/push_faults.h"

namespace ballast {
namespace {

TEST(PartitionTest, WorksAgainSoonAfterTheCableIsBack) {
  const auto hosts = TwoHosts::Create();
  if (absl::IsUnavailable(hosts.status())) GTEST_SKIP() << hosts.status().message();
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  FaultRunOptions options;
  options.server = "server/ballast_server";
  options.policy.mutable_async();
  options.pushes = 1000000;
  options.time = absl::Seconds(14);
  options.partition_every = absl::Milliseconds(500);
  options.partition_for = absl::Seconds(5);
  options.hosts = hosts->get();
  const absl::StatusOr<FaultCounts> counts = RunFaults(options);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->pushes_lost, 0u);
  EXPECT_EQ(counts->pushes_duplicated, 0u);
  EXPECT_EQ(counts->wrong_weights, 0u);
  EXPECT_GE(counts->partitions, 2u);
  EXPECT_EQ(counts->hangs, 0u);
  EXPECT_LE(Quantile(counts->healing_seconds, 1), 5);
}

}  // namespace
}  // namespace ballast
