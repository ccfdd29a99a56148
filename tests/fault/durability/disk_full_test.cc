// SPDX-License-Identifier: Apache-2.0
// A server whose disk is full: it lives, serves pulls and says why it takes no pushes; and goes on once there is room.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/durability/small_disk.h"
#include "tests/fault/oracle/server_process.h"

namespace ballast {
namespace {

using ::testing::Each;

class DiskFullTest : public ::testing::TestWithParam<v1::Durability::Mode> {
 protected:
  std::unique_ptr<Client> Connect(uint64_t incarnation) {
    ClientOptions options;
    options.shards = {server_->address()};
    options.job = "full";
    options.policy.mutable_async();
    options.durability.set_mode(GetParam());
    options.incarnation = incarnation;
    options.shared_memory = false;
    // A full disk is an error that may pass; what it is in the end is to be seen.
    options.retry_timeout = absl::Milliseconds(300);
    auto client = Client::Connect(std::move(options));
    EXPECT_TRUE(client.ok()) << client.status();
    spec_.set_name("w");
    spec_.clear_shape();
    spec_.add_shape(1000);
    spec_.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    EXPECT_EQ((*client)->Declare({&spec_, 1}), absl::OkStatus());
    return *std::move(client);
  }

  absl::Status Push(Client& client) {
    const std::vector<TensorGradient> from = {{0, ones_}};
    return client.Push(step_++, 1, from).Get().status();
  }

  std::vector<float> Pull(Client& client) {
    std::vector<float> values(1000);
    const std::vector<TensorValues> to = {{0, absl::MakeSpan(values)}};
    const absl::Status pulled = client.Pull(0, to).Get().status();
    EXPECT_TRUE(pulled.ok()) << pulled;
    return values;
  }

  std::unique_ptr<ServerProcess> server_;
  v1::TensorSpec spec_;
  const std::vector<float> ones_ = std::vector<float>(1000, 1.0f);
  uint64_t step_ = 0;
};

TEST_P(DiskFullTest, ServesPullsRefusesPushesAndGoesOnOnceThereIsRoom) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/full-", GetParam());
  std::filesystem::create_directories(folder);
  const auto disk = SmallDisk::Create(folder, 16 << 20);
  if (absl::IsUnavailable(disk.status())) GTEST_SKIP() << disk.status().message();
  ASSERT_TRUE(disk.ok()) << disk.status();
  auto server = ServerProcess::Start("server/ballast_server", "127.0.0.1", {"--state_dir", folder + "/state"});
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  std::unique_ptr<Client> client = Connect(1);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(Push(*client), absl::OkStatus());

  ASSERT_EQ((*disk)->FillUp(), absl::OkStatus());
  // What the file system had set aside for the log's last page may still take a push or two.
  int taken = 10;
  absl::Status status = Push(*client);
  for (; status.ok() && taken < 20; ++taken) status = Push(*client);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(absl::IsResourceExhausted(Push(*client)));
  EXPECT_THAT(Pull(*client), Each(-taken));
  EXPECT_TRUE((*client).GetStatus().ok());
  EXPECT_TRUE(server_->Runs());

  (*disk)->Free();
  const absl::Time freed = absl::Now();
  do {
    status = Push(*client);
  } while (!status.ok() && absl::Now() < freed + absl::Seconds(5));
  EXPECT_TRUE(status.ok()) << status;
  ++taken;
  EXPECT_THAT(Pull(*client), Each(-taken));

  // Nothing of what was refused is in the log, either.
  ASSERT_EQ(server_->Kill(), absl::OkStatus());
  ASSERT_EQ(server_->Restart(), absl::OkStatus());
  client = Connect(2);
  EXPECT_THAT(Pull(*client), Each(-taken));
}

INSTANTIATE_TEST_SUITE_P(Modes, DiskFullTest, ::testing::Values(v1::Durability::WAL, v1::Durability::WAL_SYNC),
                         [](const auto& mode) { return v1::Durability::Mode_Name(mode.param); });

}  // namespace
}  // namespace ballast
