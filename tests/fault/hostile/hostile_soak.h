// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/hostile/attack.h"

namespace ballast {

struct HostileSoakOptions {
  // Paths of ballast_server and ballast_worker.
  std::string server;
  std::string worker;
  // The test's own folder, which exists.
  std::string folder;
  // At least one round of all attacks is made, however short this is.
  absl::Duration time = absl::Minutes(5);
  std::vector<Attack> attacks;
  // Throughput under attack, as a share of that of the same job in the time between two attacks.
  double least_throughput = 0.7;
  double accuracy_tolerance = 0.01;
  // What the servers may hold above what they hold without attacks, beside their bytes in flight.
  uint64_t spare_bytes = uint64_t{64} << 20;
};

// One attack's figures, of all its rounds.
struct AttackCounts {
  std::string name;
  uint64_t attempts = 0;
  // Push messages that the servers took, and in what time: under this attack, and right before it.
  uint64_t pushes = 0;
  uint64_t pushes_before = 0;
  double seconds = 0;
  double seconds_before = 0;
  // The largest server's memory while it was attacked.
  uint64_t resident_bytes = 0;

  double throughput() const;
};

struct HostileCounts {
  std::vector<AttackCounts> attacks;
  // Of all attacks together.
  double throughput = 0;
  // After the same epoch of the job under attack and of the same job without attackers.
  uint64_t epoch = 0;
  double accuracy = 0;
  double accuracy_without_attacks = 0;
  // The largest server's memory before the first attack and at most, and what it may be at most.
  uint64_t resident_bytes_before = 0;
  uint64_t resident_bytes_most = 0;
  uint64_t resident_bytes_limit = 0;
  // The same server's memory some seconds after each round of all attacks.
  std::vector<uint64_t> resident_bytes_by_round;
  bool good = true;

  nlohmann::ordered_json ToJson() const;
};

// Trains a network on Fashion-MNIST by hand-started servers and workers, with TLS and tokens: first undisturbed, then
// beside the attacks, one after the other, with a quiet time before each. FindFashionData was OK. An error is a job
// that did not survive. To be called by the main thread.
absl::StatusOr<HostileCounts> SoakHostile(const HostileSoakOptions& options);

}  // namespace ballast
