// SPDX-License-Identifier: Apache-2.0
// Control calls on a server whose disk blocks in the middle of a checkpoint, and on one whose log nobody reads.
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/testing/slow_file_system.h"
#include "tests/fault/control/control_probe.h"
#include "tests/fault/programs/program.h"
#include "tests/testing/cluster.h"

namespace ballast {
namespace {

// Far longer than a response takes, and far shorter than a wait for the disk.
constexpr absl::Duration kTimeout = absl::Seconds(60);

class BlockedDiskTest : public testing::Test {
 protected:
  BlockedDiskTest() { std::filesystem::remove_all(folder_); }

  void Start(const v1::Durability& durability) {
    Server::Options options;
    options.workers = 2;
    options.files = &files_;
    (durability.mode() == v1::Durability::CHECKPOINT ? options.checkpoint_dir : options.state_dir) = folder_;
    server_ = StartServer(std::move(options));
    ASSERT_NE(server_, nullptr);
    absl::StatusOr<std::unique_ptr<ControlProbe>> probe = ControlProbe::Start(server_->address(), durability);
    ASSERT_TRUE(probe.ok()) << probe.status();
    probe_ = *std::move(probe);
    ClientOptions client;
    client.shards = {server_->address()};
    client.job = "control";
    client.policy.mutable_async();
    client.durability = durability;
    absl::StatusOr<std::unique_ptr<Client>> joined = Join(std::move(client), {SgdSpec(0, "w", 1000)});
    ASSERT_TRUE(joined.ok()) << joined.status();
    client_ = *std::move(joined);
  }

  const std::string folder_ = testing::TempDir() + "/blocked-disk";
  SlowFileSystem files_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<ControlProbe> probe_;
  std::unique_ptr<Client> client_;
};

TEST_F(BlockedDiskTest, ControlCallsAreAnsweredWhileACheckpointWaitsForTheDisk) {
  v1::Durability durability;
  durability.set_mode(v1::Durability::CHECKPOINT);
  durability.set_checkpoint_seconds(1);
  Start(durability);
  // Asks for data, too, before which no checkpoint is taken.
  ASSERT_EQ(probe_->CallEach(kTimeout), absl::OkStatus());
  files_.Block();
  const absl::Cleanup release = [this] { files_.Release(); };
  // The checkpoint's first write.
  files_.AwaitBlocked(1);
  for (int round = 0; round < 20; ++round) ASSERT_EQ(probe_->CallEach(kTimeout), absl::OkStatus());
  files_.Release();
  const CheckpointFolder checkpoints(PosixFileSystem(), folder_);
  while (!checkpoints.Newest().ok()) ASSERT_EQ(probe_->CallEach(kTimeout), absl::OkStatus());
}

TEST_F(BlockedDiskTest, WhatDependsOnNothingNewIsAnsweredWhileTheLogWaitsForTheDisk) {
  v1::Durability durability;
  durability.set_mode(v1::Durability::WAL_SYNC);
  Start(durability);
  files_.Block();
  const absl::Cleanup release = [this] { files_.Release(); };
  const std::vector<float> ones(1000, 1.0f);
  Future<PushResult> push = client_->Push(0, 1, {{0, ones}});
  files_.AwaitBlocked(1);
  for (int round = 0; round < 20; ++round) ASSERT_EQ(probe_->CallReaders(kTimeout), absl::OkStatus());
  files_.Release();
  EXPECT_TRUE(push.Get().ok());
}

// --- a server whose log lines nobody reads: a blocked terminal, a full pipe ---

// The server logs a line of 26 bytes in each round; a pipe holds 64 KiB.
constexpr int kRounds = 4000;

TEST(UnreadLinesTest, DoNotHoldControlCallsUp) {
  absl::StatusOr<std::unique_ptr<ServerProcess>> server =
      ServerProcess::Start("server/ballast_server", "127.0.0.1", {"--workers", "2"});
  ASSERT_TRUE(server.ok()) << server.status();
  absl::StatusOr<std::unique_ptr<ControlProbe>> probe = ControlProbe::Start((*server)->address(), v1::Durability());
  ASSERT_TRUE(probe.ok()) << probe.status();
  for (int round = 0; round < kRounds; ++round)
    ASSERT_EQ((*probe)->CallEach(absl::Seconds(20)), absl::OkStatus()) << round;
  probe->reset();
  // End reads these lines and all later ones.
  EXPECT_EQ((*server)->End(), absl::OkStatus());
  EXPECT_NE((*server)->output().find("has ended"), std::string::npos);
  EXPECT_GT((*server)->output().size(), size_t{64} << 10);
}

}  // namespace
}  // namespace ballast
