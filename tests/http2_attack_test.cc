// SPDX-License-Identifier: Apache-2.0
// Peers abuse HTTP/2 against a live server: it still responds, a job's pushes continue, and its memory is bounded.
#include "tests/fault/hostile/http2_attack.h"

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "client/coordinator_link.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "tests/testing/security_folder.h"

namespace ballast {
namespace {

using ::testing::Values;

constexpr uint64_t kMiB = 1 << 20;
constexpr absl::Duration kTime = absl::Seconds(2);
// Enough for a busy machine; without limits an attack of this size stalls a server for longer.
constexpr absl::Duration kMaxCallTime = absl::Seconds(5);

// Peak memory of this process, which holds the server and the attackers.
uint64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    uint64_t kib = 0;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words[0] == "VmHWM:" && absl::SimpleAtoi(words[1], &kib)) return kib << 10;
  }
  return 0;
}

// Results of a job's client that pushes and asks for status repeatedly.
struct ClientResult {
  uint64_t pushes = 0;
  absl::Duration longest = absl::ZeroDuration();
  absl::Status status;
};

// A server and a client of its job, with or without TLS.
class Http2AttackTest : public ::testing::Test {
 protected:
  // gRPC's log lines about each cut connection would take longer than the attack.
  static void SetUpTestSuite() { setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0); }

  void Start(bool tls) {
    Server::Options options;
    options.max_state_bytes = 1 << 24;
    options.max_connections = 256;
    if (tls) {
      options.security.tls = folder_.Issue("server", {"127.0.0.1"});
      client_files_ = folder_.Issue("client", {});
    }
    auto server = Server::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);

    ClientOptions client;
    client.shards = {server_->address()};
    client.job = "attacked";
    client.policy.mutable_async();
    client.shared_memory = false;
    if (tls) client.credentials = Credentials::Make({client_files_, ""}, "").value();
    auto connected = Client::Connect(client);
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
    auto link = CoordinatorLink::Connect(server_->control_address(), absl::Seconds(30), client.credentials);
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
    v1::TensorSpec spec;
    spec.set_id(1);
    spec.set_name("w");
    spec.add_shape(kElements);
    spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    ASSERT_EQ(client_->Declare({spec}), absl::OkStatus());
  }

  // Attacks while the client pushes.
  Http2AttackCounts Attack(Http2AttackOptions options, ClientResult& result) {
    options.address = server_->address();
    options.time = kTime;
    if (!client_files_.certificate.empty()) options.tls = client_files_;
    absl::Notification over;
    std::thread training([&] { result = Push(over); });
    const absl::StatusOr<Http2AttackCounts> counts = RunHttp2Attack(options);
    over.Notify();
    training.join();
    EXPECT_TRUE(counts.ok()) << counts.status();
    return counts.value_or(Http2AttackCounts());
  }

  ClientResult Push(const absl::Notification& over) {
    ClientResult result;
    const std::vector<float> gradient(kElements, 1);
    for (; !over.HasBeenNotified() && result.status.ok(); ++result.pushes) {
      const absl::Time begin = absl::Now();
      result.status = client_->Push(result.pushes, 1, {{1, gradient}}).Get().status();
      result.status.Update(client_->GetStatus().status());
      result.status.Update(link_->GetProgress().status());
      result.longest = std::max(result.longest, absl::Now() - begin);
    }
    return result;
  }

  void ExpectUndisturbed(const ClientResult& result, [[maybe_unused]] uint64_t peak_before) {
    EXPECT_EQ(result.status, absl::OkStatus());
    EXPECT_GT(result.pushes, 0u);
    EXPECT_LT(result.longest, kMaxCallTime);
#ifndef __SANITIZE_ADDRESS__
    // Attackers and server together; a server alone took hundreds of MiB before. A sanitizer keeps freed memory.
    EXPECT_LT(PeakBytes(), peak_before + 128 * kMiB);
#endif
  }

  static constexpr size_t kElements = 1000;
  SecurityFolder folder_;
  TlsFiles client_files_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
  // Connected to the control port.
  std::unique_ptr<CoordinatorLink> link_;
};

// Floods that a server can tell from a client's work, by name and with or without TLS.
class FloodTest : public Http2AttackTest, public ::testing::WithParamInterface<std::tuple<const char*, bool>> {};

TEST_P(FloodTest, IsCutOffWhileTheJobGoesOn) {
  Start(std::get<1>(GetParam()));
  const uint64_t peak_before = PeakBytes();
  ClientResult result;
  Http2AttackOptions attack;
  attack.attack = ParseHttp2Attack(std::get<0>(GetParam())).value();
  const Http2AttackCounts counts = Attack(attack, result);
  EXPECT_GT(counts.cut, 0u) << counts.connections << " connections, " << counts.frames << " frames";
  ExpectUndisturbed(result, peak_before);
}

INSTANTIATE_TEST_SUITE_P(Http2AttackTest, FloodTest,
                         ::testing::Combine(Values("unfinished_headers", "endless_continuation", "rapid_reset",
                                                   "ping_flood", "settings_flood", "unacknowledged_calls"),
                                            Values(false, true)),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param), std::get<1>(test.param) ? "_tls" : "");
                         });

// Idle peers may be honest: the server tolerates them.
class IdlerTest : public Http2AttackTest, public ::testing::WithParamInterface<std::tuple<const char*, bool>> {};

TEST_P(IdlerTest, DoesNotDisturbTheJob) {
  Start(std::get<1>(GetParam()));
  const uint64_t peak_before = PeakBytes();
  ClientResult result;
  Http2AttackOptions attack;
  attack.attack = ParseHttp2Attack(std::get<0>(GetParam())).value();
  if (attack.attack == Http2Attack::kManyConnections) attack.connections = 5000;
  if (attack.attack == Http2Attack::kHalfOpenTls) attack.connections = 200;
  const Http2AttackCounts counts = Attack(attack, result);
  EXPECT_GT(counts.connections, 0u);
  ExpectUndisturbed(result, peak_before);
}

INSTANTIATE_TEST_SUITE_P(Http2AttackTest, IdlerTest,
                         ::testing::Combine(Values("half_open_tls", "many_connections", "slow_reader"),
                                            Values(false, true)),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param), std::get<1>(test.param) ? "_tls" : "");
                         });

}  // namespace
}  // namespace ballast
