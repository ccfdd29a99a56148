// SPDX-License-Identifier: Apache-2.0
// A worker that was cut off and replaced: what it had sent arrives late and is refused.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/oracle/server_process.h"
#include "tests/fault/proxy/fault_proxy.h"

namespace ballast {
namespace {

using ::testing::Each;

constexpr int kPushes = 20;

class OldIncarnationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = ServerProcess::Start("server/ballast_server", "127.0.0.1", {"--workers", "1"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    spec_.set_name("w");
    spec_.add_shape(4);
    spec_.mutable_initializer()->mutable_zeros();
    spec_.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  }

  // Worker 0, by this address.
  std::unique_ptr<Client> Connect(const std::string& address, uint64_t incarnation) {
    ClientOptions options;
    options.shards = {address};
    options.job = "old";
    options.policy.mutable_async();
    options.incarnation = incarnation;
    options.shared_memory = false;
    options.rpc_timeout = absl::Seconds(1);
    auto client = Client::Connect(std::move(options));
    EXPECT_TRUE(client.ok()) << client.status();
    EXPECT_EQ((*client)->Declare({&spec_, 1}), absl::OkStatus());
    return *std::move(client);
  }

  std::vector<float> Pull(Client& client) {
    std::vector<float> values(4);
    const std::vector<TensorValues> to = {{0, absl::MakeSpan(values)}};
    EXPECT_EQ(client.Pull(0, to).Get().status(), absl::OkStatus());
    return values;
  }

  std::unique_ptr<ServerProcess> server_;
  v1::TensorSpec spec_;
  const std::vector<float> ones_ = {1, 1, 1, 1}, tens_ = {10, 10, 10, 10};
  const std::vector<TensorGradient> one_ = {{0, ones_}}, ten_ = {{0, tens_}};
};

TEST_F(OldIncarnationTest, IsRefusedWhenThePartitionHeals) {
  auto proxy = FaultProxy::Start(server_->address(), {}, 1);
  ASSERT_TRUE(proxy.ok()) << proxy.status();
  const auto old = Connect((*proxy)->address(), 1), young = Connect(server_->address(), 2);
  ASSERT_EQ(old->Push(0, 1, one_).Get().status(), absl::OkStatus());
  (*proxy)->Partition();
  std::vector<Future<PushResult>> late;
  for (int i = 1; i <= kPushes; ++i) late.push_back(old->Push(i, 1, one_));
  // Its first push makes it known.
  ASSERT_EQ(young->Push(0, 1, ten_).Get().status(), absl::OkStatus());
  const std::vector<float> before = Pull(*young);
  (*proxy)->Heal();
  for (const auto& push : late) {
    EXPECT_TRUE(absl::IsFailedPrecondition(push.Get().status())) << push.Get().status();
  }
  EXPECT_EQ(Pull(*young), before);
  EXPECT_THAT(before, Each(-11));
  EXPECT_EQ(young->Push(1, 1, ten_).Get().status(), absl::OkStatus());
  EXPECT_THAT(Pull(*young), Each(-21));
}

}  // namespace
}  // namespace ballast
