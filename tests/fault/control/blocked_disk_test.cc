// SPDX-License-Identifier: Apache-2.0
// A server whose disk blocks in the middle of a checkpoint still responds to status calls.
#include <filesystem>
#include <memory>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/testing/slow_file_system.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "tests/fault/control/control_probe.h"

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
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    absl::StatusOr<std::unique_ptr<ControlProbe>> probe = ControlProbe::Start(server_->address(), durability);
    ASSERT_TRUE(probe.ok()) << probe.status();
    probe_ = *std::move(probe);
    ClientOptions client;
    client.shards = {server_->address()};
    client.job = "control";
    client.policy.mutable_async();
    client.durability = durability;
    absl::StatusOr<std::unique_ptr<Client>> connected = Client::Connect(std::move(client));
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
    v1::TensorSpec spec;
    spec.set_name("w");
    spec.add_shape(1000);
    spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    ASSERT_TRUE(client_->Declare({spec}).ok());
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

}  // namespace
}  // namespace ballast
