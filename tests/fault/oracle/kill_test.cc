// SPDX-License-Identifier: Apache-2.0
// The short form of kill -9: servers are killed and restarted on their ports, and no acknowledged push is missing.
#include <optional>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/oracle/push_faults.h"

namespace ballast {
namespace {

FaultRunOptions Killing(v1::Durability::Mode mode, uint64_t kills) {
  FaultRunOptions options;
  options.server = "server/ballast_server";
  options.policy.mutable_async();
  options.durability = mode;
  options.state_folder = absl::StrCat(testing::TempDir(), "/kill-", mode);
  options.pushes = 1000000;
  options.kill_every = absl::Milliseconds(100);
  options.kills = kills;
  return options;
}

void ExpectNothingLost(const FaultRunOptions& options, std::optional<uint64_t> restarts = std::nullopt) {
  const absl::StatusOr<FaultCounts> counts = RunFaults(options);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->kills, options.kills);
  EXPECT_EQ(counts->restarts, restarts.value_or(options.kills));
  EXPECT_GT(counts->pushes_acknowledged, 0u);
  EXPECT_EQ(counts->pushes_lost, 0u);
  EXPECT_EQ(counts->pushes_duplicated, 0u);
  EXPECT_EQ(counts->wrong_weights, 0u);
  EXPECT_EQ(counts->wrong_pulls, 0u);
  EXPECT_EQ(counts->hangs, 0u);
  EXPECT_LE(Quantile(counts->recovery_seconds, 1), 10);
}

TEST(KillTest, WalLosesNoAcknowledgedPush) { ExpectNothingLost(Killing(v1::Durability::WAL, 4)); }

TEST(KillTest, WalSyncLosesNoAcknowledgedPush) { ExpectNothingLost(Killing(v1::Durability::WAL_SYNC, 3)); }

TEST(KillTest, ReplicaLosesNoAcknowledgedPush) { ExpectNothingLost(Killing(v1::Durability::STANDBY, 4)); }

TEST(KillTest, ReplicaLosesNoStep) {
  FaultRunOptions options = Killing(v1::Durability::STANDBY, 3);
  options.policy.mutable_sync()->set_deterministic(true);
  ExpectNothingLost(options);
}

// A server that was lost and lives continues, and must not be believed.
TEST(KillTest, ReplicaBelievesNoServerThatWasFrozen) {
  FaultRunOptions options = Killing(v1::Durability::STANDBY, 3);
  options.freeze = true;
  ExpectNothingLost(options, /*restarts=*/0);
}

TEST(KillTest, LosesNothingThoughRepliesAreLostAsWell) {
  FaultRunOptions options = Killing(v1::Durability::WAL, 3);
  options.plan.drop_replies = 0.1;
  options.plan.silence = absl::Milliseconds(50);
  ExpectNothingLost(options);
}

// Longer pauses, because a client asks for memory again only after a second.
TEST(KillTest, WalLosesNoPushMadeInSharedMemory) {
  FaultRunOptions options = Killing(v1::Durability::WAL, 3);
  options.shared_memory = true;
  options.kill_every = absl::Milliseconds(1500);
  ExpectNothingLost(options);
}

TEST(KillTest, StandbyLosesNoStepMadeInSharedMemory) {
  FaultRunOptions options = Killing(v1::Durability::STANDBY, 3);
  options.policy.mutable_sync()->set_deterministic(true);
  options.shared_memory = true;
  options.kill_every = absl::Milliseconds(1500);
  ExpectNothingLost(options);
}

// Servers die, and stop, while they read the workers' memory, and while the workers read theirs.
TEST(KillTest, StandbyLosesNoStepWhosePayloadsStayInPlace) {
  for (const bool freeze : {false, true}) {
    FaultRunOptions options = Killing(v1::Durability::STANDBY, 2);
    options.policy.mutable_sync()->set_deterministic(true);
    options.shared_memory = true;
    options.elements = 8192;
    options.freeze = freeze;
    options.kill_every = absl::Milliseconds(1500);
    ExpectNothingLost(options, /*restarts=*/freeze ? 0 : 2);
  }
}

// Likewise for a data stream.
TEST(KillTest, WalLosesNoPushMadeOnDataStreams) {
  FaultRunOptions options = Killing(v1::Durability::WAL, 3);
  options.kill_every = absl::Milliseconds(1500);
  ExpectNothingLost(options);
}

TEST(KillTest, StandbyLosesNoStepMadeOnDataStreams) {
  FaultRunOptions options = Killing(v1::Durability::STANDBY, 3);
  options.policy.mutable_sync()->set_deterministic(true);
  options.kill_every = absl::Milliseconds(1500);
  ExpectNothingLost(options);
}

TEST(KillTest, SyncLosesNoStep) {
  FaultRunOptions options = Killing(v1::Durability::WAL, 3);
  options.policy.mutable_sync()->set_deterministic(true);
  ExpectNothingLost(options);
}

TEST(KillTest, BoundedLosesNothingAndHangsNowhere) {
  FaultRunOptions options = Killing(v1::Durability::WAL, 3);
  options.policy.mutable_bounded()->set_steps_ahead(2);
  ExpectNothingLost(options);
}

// A worker that was cut off and replaced: its pushes arrive late.
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
