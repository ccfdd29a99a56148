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
  // Existing directory of the test's own.
  std::string folder;
  // Runs at least one round of all attacks, even if the time is too short for it.
  absl::Duration time = absl::Minutes(5);
  std::vector<Attack> attacks;
  // Least throughput under attack, as a share of the same job's throughput between two attacks.
  double least_throughput = 0.7;
  double accuracy_tolerance = 0.01;
  // Memory that the servers may hold above that without attacks, in addition to their bytes in flight.
  uint64_t spare_bytes = uint64_t{64} << 20;
};

// Counts of one attack, over all its rounds.
struct AttackCounts {
  std::string name;
  uint64_t attempts = 0;
  // Push messages that the servers accepted, and the time for them: under this attack, and right before it.
  uint64_t pushes = 0;
  uint64_t pushes_before = 0;
  double seconds = 0;
  double seconds_before = 0;
  // Memory of the largest server during the attack.
  uint64_t resident_bytes = 0;

  double throughput() const;
};

struct HostileCounts {
  std::vector<AttackCounts> attacks;
  // Over all attacks together.
  double throughput = 0;
  // Accuracy after the same epoch of the job under attack and of the same job without attackers.
  uint64_t epoch = 0;
  double accuracy = 0;
  double accuracy_without_attacks = 0;
  // Memory of the largest server before the first attack, its maximum, and its limit.
  uint64_t resident_bytes_before = 0;
  uint64_t resident_bytes_most = 0;
  uint64_t resident_bytes_limit = 0;
  // Memory of that server some seconds after each round of all attacks.
  std::vector<uint64_t> resident_bytes_by_round;
  bool good = true;

  nlohmann::ordered_json ToJson() const;
};

// All attacks of attack.h.
std::vector<Attack> AllAttacks();

// Trains a network on Fashion-MNIST by hand-started servers and workers with TLS and tokens: first undisturbed, then
// under one attack after the other, with a quiet time before each. Requires that FindFashionData returned OK. An
// error means that the job did not survive. To be called by the main thread.
absl::StatusOr<HostileCounts> SoakHostile(const HostileSoakOptions& options);

}  // namespace ballast
