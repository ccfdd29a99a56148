// SPDX-License-Identifier: Apache-2.0
// One attack on a server on this machine, and the latencies of calls to it during the attack.
#include <algorithm>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "common/program/env_flags.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/grpcpp.h"
#include "tests/fault/hostile/http2_attack.h"

ABSL_FLAG(std::string, address, "127.0.0.1:7700", "IPv4:PORT to attack.");
ABSL_FLAG(std::string, probe, "", "HOST:PORT to time calls on during the attack; empty: --address.");
ABSL_FLAG(std::string, attack, "unfinished_headers", "Name of the attack.");
ABSL_FLAG(uint32_t, connections, 4, "Simultaneous connections.");
ABSL_FLAG(uint64_t, mib_each, 48, "MiB that each connection sends.");
ABSL_FLAG(double, seconds, 10, "Duration of the attack in seconds.");
ABSL_FLAG(std::string, tls_ca, "", "PEM file of the server's authorities; if set, the attack uses TLS.");
ABSL_FLAG(std::string, tls_cert, "", "PEM file of the certificate to show.");
ABSL_FLAG(std::string, tls_key, "", "PEM file of its private key.");

namespace ballast {
namespace {

int Run() {
  Http2AttackOptions options;
  options.address = absl::GetFlag(FLAGS_address);
  const absl::StatusOr<Http2Attack> attack = ParseHttp2Attack(absl::GetFlag(FLAGS_attack));
  if (!attack.ok()) {
    std::cerr << "error: " << attack.status().message() << std::endl;
    return 2;
  }
  options.attack = *attack;
  options.connections = absl::GetFlag(FLAGS_connections);
  options.bytes_each = absl::GetFlag(FLAGS_mib_each) << 20;
  options.time = absl::Seconds(absl::GetFlag(FLAGS_seconds));
  const TlsFiles tls = {absl::GetFlag(FLAGS_tls_cert), absl::GetFlag(FLAGS_tls_key), absl::GetFlag(FLAGS_tls_ca)};
  if (!tls.authorities.empty()) options.tls = tls;

  std::string probe = absl::GetFlag(FLAGS_probe);
  if (probe.empty()) probe = options.address;
  auto stub = v1::CoordinatorService::NewStub(grpc::CreateChannel(probe, grpc::InsecureChannelCredentials()));
  absl::Notification over;
  std::vector<double> milliseconds;
  uint64_t failed = 0;
  std::thread prober([&] {
    do {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
      v1::GetProgressResponse response;
      const absl::Time begin = absl::Now();
      const grpc::Status status = stub->GetProgress(&context, {}, &response);
      milliseconds.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
      if (!status.ok()) ++failed;
    } while (!over.WaitForNotificationWithTimeout(absl::Milliseconds(10)));
  });
  const absl::StatusOr<Http2AttackCounts> counts = RunHttp2Attack(options);
  over.Notify();
  prober.join();
  if (!counts.ok()) {
    std::cerr << "error: " << counts.status().message() << std::endl;
    return 2;
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  std::cout << NameOf(options.attack) << ": " << counts->connections << " connections, " << counts->refused
            << " refused, " << counts->cut << " cut, " << counts->frames << " frames, " << (counts->bytes >> 20)
            << " MiB; " << milliseconds.size() << " probes, " << failed << " failed, p50 "
            << milliseconds[milliseconds.size() / 2] << " ms, p99 " << milliseconds[milliseconds.size() * 99 / 100]
            << " ms, longest " << milliseconds.back() << " ms" << std::endl;
  return 0;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  const absl::Status parsed = ballast::ParseFlags(
      argc, argv,
      "http2_attacker: attacks a server on this machine and times calls to it.\n\n"
      "  http2_attacker --address 127.0.0.1:7700 --attack unfinished_headers",
      {"address", "probe", "attack", "connections", "mib_each", "seconds", "tls_ca", "tls_cert", "tls_key"});
  if (!parsed.ok()) {
    std::cerr << "error: " << parsed.message() << std::endl;
    return 2;
  }
  return ballast::Run();
}
