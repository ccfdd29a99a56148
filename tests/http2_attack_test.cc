// SPDX-License-Identifier: Apache-2.0
// Peers abuse HTTP/2 against a live server: it still responds, a job's pushes continue, and its memory is bounded.
#include "tests/fault/hostile/http2_attack.h"

#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/coordinator_link.h"
#include "gmock/gmock.h"
#include "tests/fault/programs/program.h"
#include "tests/testing/cluster.h"
#include "tests/testing/security_folder.h"

namespace ballast {
namespace {

using ::testing::Values;

constexpr uint64_t kMiB = 1 << 20;
constexpr absl::Duration kTime = absl::Seconds(1);
// Enough for a busy machine; without limits an attack of this size stalls a server for longer.
constexpr absl::Duration kMaxCallTime = absl::Seconds(5);

// Peak memory of this process, which holds the server and the attackers.
uint64_t PeakBytes() { return ProcessUse::Of(getpid()).peak_resident_bytes; }

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
    server_ = StartServer(std::move(options));
    ASSERT_NE(server_, nullptr);
    ClientOptions client;
    client.shards = {server_->address()};
    client.job = "attacked";
    client.policy.mutable_async();
    client.shared_memory = false;
    if (tls) client.credentials = Credentials::Make({client_files_, ""}, "").value();
    auto connected = Join(client, {Spec(1, "w", kElements)});
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
    auto link = CoordinatorLink::Connect(server_->control_address(), absl::Seconds(30), client.credentials);
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
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
#ifndef ABSL_HAVE_ADDRESS_SANITIZER
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

// Attacks by name, with or without TLS.
class NamedAttackTest : public Http2AttackTest, public ::testing::WithParamInterface<std::tuple<const char*, bool>> {
 protected:
  // Attacks while the job goes on; returns the counts.
  Http2AttackCounts ExpectJobGoesOn() {
    Start(std::get<1>(GetParam()));
    const uint64_t peak_before = PeakBytes();
    ClientResult result;
    Http2AttackOptions attack;
    attack.attack = ParseHttp2Attack(std::get<0>(GetParam())).value();
    if (attack.attack == Http2Attack::kManyConnections) attack.connections = 5000;
    if (attack.attack == Http2Attack::kHalfOpenTls) attack.connections = 200;
    const Http2AttackCounts counts = Attack(attack, result);
    ExpectUndisturbed(result, peak_before);
    return counts;
  }
};
constexpr auto kNameOf = [](const auto& test) {
  return absl::StrCat(std::get<0>(test.param), std::get<1>(test.param) ? "_tls" : "");
};

// Floods that a server can tell from a client's work.
class FloodTest : public NamedAttackTest {};

TEST_P(FloodTest, IsCutOffWhileTheJobGoesOn) {
  const Http2AttackCounts counts = ExpectJobGoesOn();
  EXPECT_GT(counts.cut, 0u) << counts.connections << " connections, " << counts.frames << " frames";
}

INSTANTIATE_TEST_SUITE_P(Http2AttackTest, FloodTest,
                         ::testing::Combine(Values("unfinished_headers", "endless_continuation", "rapid_reset",
                                                   "ping_flood", "settings_flood", "unacknowledged_calls"),
                                            Values(false, true)),
                         kNameOf);

// Idle peers may be honest: the server tolerates them.
class IdlerTest : public NamedAttackTest {};

TEST_P(IdlerTest, DoesNotDisturbTheJob) { EXPECT_GT(ExpectJobGoesOn().connections, 0u); }

INSTANTIATE_TEST_SUITE_P(Http2AttackTest, IdlerTest,
                         ::testing::Combine(Values("half_open_tls", "many_connections", "slow_reader"),
                                            Values(false, true)),
                         kNameOf);

}  // namespace
}  // namespace ballast
