// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/security/tokens.h"
#include "tests/fault/hostile/attack.h"
#include "tests/fault/hostile/http2_attack.h"

namespace ballast {
namespace {

// Simultaneous connections per server. The idle ones exceed the server's limit; the half-open ones do not.
constexpr uint32_t kTalking = 2;
constexpr uint32_t kHalfOpen = 500;
constexpr uint32_t kIdle = 2500;

uint32_t ConnectionsOf(Http2Attack attack) {
  if (attack == Http2Attack::kHalfOpenTls) return kHalfOpen;
  return attack == Http2Attack::kManyConnections ? kIdle : kTalking;
}

// Pulls the values of the first tensor: a response that fills a window.
std::string SmallPull(const std::string& job) {
  v1::PullRequest pull;
  pull.set_job(job);
  pull.add_slices()->set_tensor_id(0);
  pull.set_wait_ms(1);
  return pull.SerializeAsString();
}

absl::StatusOr<uint64_t> Run(Http2Attack attack, const HostileTarget& target, absl::Time end) {
  const absl::StatusOr<std::string> token = LoadClientToken(target.reader.token_file);
  if (!token.ok()) return token.status();
  std::vector<absl::StatusOr<Http2AttackCounts>> counts(target.addresses.size(), Http2AttackCounts());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < target.addresses.size(); ++i) {
    threads.emplace_back([&, i] {
      Http2AttackOptions options;
      options.address = target.addresses[i];
      options.attack = attack;
      options.connections = ConnectionsOf(attack);
      options.time = end - absl::Now();
      options.tls = target.reader.tls;
      options.token = *token;
      options.path = "/ballast.v1.ParameterService/Pull";
      options.request = SmallPull(target.job);
      counts[i] = RunHttp2Attack(options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t attempts = 0;
  for (const absl::StatusOr<Http2AttackCounts>& one : counts) {
    if (!one.ok()) return one.status();
    attempts += one->connections + one->refused + one->frames;
  }
  return attempts;
}

}  // namespace

std::vector<Attack> Http2Floods() {
  std::vector<Attack> attacks;
  for (const std::string& name : Http2AttackNames()) {
    const Http2Attack attack = *ParseHttp2Attack(name);
    attacks.push_back(
        {name, [attack](const HostileTarget& target, absl::Time end) { return Run(attack, target, end); }});
  }
  return attacks;
}

}  // namespace ballast
