// SPDX-License-Identifier: Apache-2.0
// The memory of an overloaded server stays within the limit in docs/design/reliability.md: what it had before, its
// state and its bytes in flight, and 64 MiB.
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "gtest/gtest.h"
#include "tests/fault/programs/program.h"
#include "tests/testing/child_process.h"
#include "tests/testing/tensors.h"

namespace ballast {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBudgetMiB = 32;
constexpr uint32_t kGreedy = 4;
constexpr int kTensors = 16;
constexpr size_t kElements = kMiB;

std::vector<v1::TensorSpec> Specs() {
  std::vector<v1::TensorSpec> specs(kTensors);
  for (int i = 0; i < kTensors; ++i) {
    specs[i].set_id(i);
    specs[i].set_name(absl::StrCat("w", i));
    specs[i].add_shape(kElements);
    specs[i].mutable_optimizer()->mutable_momentum()->set_learning_rate(1e-3f);
    specs[i].mutable_optimizer()->mutable_momentum()->set_momentum(0.5f);
  }
  return specs;
}

std::unique_ptr<Client> Connect(const std::string& address, uint32_t worker, uint32_t in_flight) {
  ClientOptions options;
  options.shards = {address};
  options.job = "memory";
  options.policy.mutable_async();
  options.workers = kGreedy + 1;
  options.worker = worker;
  options.messages_in_flight = in_flight;
  options.retry_timeout = absl::Seconds(60);
  auto client = Join(std::move(options), Specs());
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

// Push-pulls all tensors at once, `rounds` times; returns the first failure.
absl::Status PushPull(Client& client, int rounds) {
  std::vector<std::vector<float>> gradients(kTensors, std::vector<float>(kElements, 1.0f)), values = gradients;
  std::vector<TensorGradient> from;
  std::vector<TensorValues> to;
  for (uint32_t i = 0; i < kTensors; ++i) {
    from.push_back({i, gradients[i]});
    to.push_back({i, absl::MakeSpan(values[i])});
  }
  absl::Status status;
  for (int round = 0; round < rounds && status.ok(); ++round) {
    status = client.PushPull(round, 1, from, to).Get().status();
  }
  return status;
}

TEST(ServerMemoryTest, StaysWithinStateAndBudgetUnderGreedyAndSilentClients) {
  const std::string address_file = absl::StrCat(testing::TempDir(), "/address");
  ChildProcess server({"server/ballast_server", "--listen", "127.0.0.1:0", "--workers", absl::StrCat(kGreedy + 1),
                       "--bytes_in_flight_mib", absl::StrCat(kBudgetMiB), "--address_file", address_file});
  ASSERT_TRUE(server.AwaitOutput("serves on"));
  std::string address;
  std::getline(std::ifstream(address_file) >> std::ws, address);
  const uint64_t before = ProcessUse::Of(server.pid()).peak_resident_bytes;

  std::vector<std::unique_ptr<ChildProcess>> greedy;
  for (uint32_t worker = 0; worker < kGreedy; ++worker) {
    greedy.push_back(std::make_unique<ChildProcess>(
        std::vector<std::string>{"/proc/self/exe", "--greedy", address, absl::StrCat(worker)}));
    ASSERT_TRUE(greedy.back()->AwaitOutput("pushes"));
  }
  // One of them neither reads nor sends from now on.
  greedy[0]->Signal(SIGSTOP);

  const std::unique_ptr<Client> client = Connect(address, kGreedy, 4);
  ASSERT_NE(client, nullptr);
  const absl::Status status = PushPull(*client, 5);
  EXPECT_TRUE(status.ok()) << status;
  const auto answer = client->GetStatus();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_LE((*answer)[0].bytes_in_flight(), kBudgetMiB * kMiB);
  EXPECT_GT((*answer)[0].refused(), 0u);
  EXPECT_EQ((*answer)[0].state_bytes(), kTensors * kElements * sizeof(float) * 2);
  const uint64_t peak = ProcessUse::Of(server.pid()).peak_resident_bytes;
  EXPECT_GT(before, 0);
  EXPECT_LE(peak, before + (*answer)[0].state_bytes() + (kBudgetMiB + 64) * kMiB);
  RecordProperty("peak_mib", static_cast<int>(peak / kMiB));
}

}  // namespace

// A greedy client keeps far more messages in flight than the server admits, until it is killed.
int RunGreedy(const std::string& address, uint32_t worker) {
  const std::unique_ptr<Client> client = Connect(address, worker, 256);
  std::cerr << "pushes" << std::endl;
  return client != nullptr && PushPull(*client, 1000000).ok() ? 0 : 1;
}

}  // namespace ballast

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 4 && std::string(argv[1]) == "--greedy") return ballast::RunGreedy(argv[2], std::atoi(argv[3]));
  return RUN_ALL_TESTS();
}
