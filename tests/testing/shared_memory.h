// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/testing/cluster.h"

namespace ballast {

// A server of one tensor and two workers, whose messages go through shared memory.

inline constexpr size_t kElements = (3 << 20) + 5;

inline std::unique_ptr<Server> Serve(const std::string& listen = "127.0.0.1:0",
                                     uint64_t max_bytes_in_flight = 256 << 20) {
  Server::Options options;
  options.listen = listen;
  options.workers = 2;
  options.max_bytes_in_flight = max_bytes_in_flight;
  return StartServer(std::move(options));
}

inline ClientOptions OptionsFor(const Server& server, uint32_t worker) {
  ClientOptions options;
  options.shards = {server.address()};
  options.job = "shared";
  options.policy.mutable_async();
  options.workers = 2;
  options.worker = worker;
  return options;
}

inline std::unique_ptr<Client> JoinAs(const ClientOptions& options) {
  auto client = Join(options, {Spec(1, "w", kElements)});
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

inline v1::GetStatusResponse StatusOf(Client& client) {
  const auto status = client.GetStatus();
  EXPECT_TRUE(status.ok()) << status.status();
  return status.ok() ? (*status)[0] : v1::GetStatusResponse();
}

// Pulls until the client's messages go through shared memory.
inline void AwaitSharing(Client& client) {
  std::vector<float> values(kElements);
  const uint64_t before = StatusOf(client).shared_calls();
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  while (StatusOf(client).shared_calls() == before && absl::Now() < give_up) {
    const auto pulled = client.Pull(0, {{1, absl::MakeSpan(values)}}).Get();
    ASSERT_TRUE(pulled.ok()) << pulled.status();
  }
  ASSERT_GT(StatusOf(client).shared_calls(), before);
}

// Joins with or without shared memory, which then serves.
inline std::unique_ptr<Client> JoinAs(ClientOptions options, bool shared) {
  options.shared_memory = shared;
  std::unique_ptr<Client> client = JoinAs(options);
  if (shared) AwaitSharing(*client);
  return client;
}

inline std::vector<float> Gradient() {
  std::vector<float> gradient(kElements);
  for (size_t i = 0; i < kElements; ++i) gradient[i] = static_cast<float>(i % 1001) / 500 - 1;
  return gradient;
}

// Returns the weights after a few push-pulls.
inline std::vector<float> Train(bool shared, v1::Encoding gradients, v1::Encoding values_encoding) {
  const std::unique_ptr<Server> server = Serve();
  ClientOptions options = OptionsFor(*server, 0);
  // Random rounding depends on the incarnation.
  options.incarnation = 1;
  options.codec.set_gradients(gradients);
  options.codec.set_values(values_encoding);
  const std::unique_ptr<Client> client = JoinAs(options, shared);
  const uint64_t calls = StatusOf(*client).shared_calls();
  const std::vector<float> gradient = Gradient();
  std::vector<float> values(kElements);
  for (int step = 0; step < 3; ++step) {
    const auto pushed = client->PushPull(step, 1, {{1, gradient}}, {{1, absl::MakeSpan(values)}}).Get();
    EXPECT_TRUE(pushed.ok()) << pushed.status();
  }
  EXPECT_EQ(StatusOf(*client).shared_calls() > calls, shared);
  EXPECT_EQ(StatusOf(*client).duplicates(), 0u);
  return values;
}

}  // namespace ballast
