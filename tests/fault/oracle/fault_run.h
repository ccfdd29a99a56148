// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"
#include "tests/fault/network/two_hosts.h"
#include "tests/fault/proxy/fault_proxy.h"

namespace ballast {

// A job of the oracle's on real servers, and what is done to it meanwhile.
struct FaultRunOptions {
  // Path of ballast_server.
  std::string server;
  std::vector<std::string> server_flags;
  uint32_t servers = 2;
  uint32_t workers = 4;
  v1::ConsistencyPolicy policy;
  // With more than none servers get folders of their own in `state_folder`, which is emptied.
  v1::Durability::Mode durability = v1::Durability::NONE;
  std::string state_folder;
  // Of each worker; the run ends with them, or after `time`.
  uint64_t pushes = 500;
  absl::Duration time = absl::InfiniteDuration();
  // Of tensors that nobody pushes.
  uint32_t idle_mib = 0;
  // On each worker's way to each server.
  FaultPlan plan;
  uint64_t seed = 1;
  // kill -9 of one server after the other and its restart on the same port, so long after the last one works again.
  absl::Duration kill_every = absl::InfiniteDuration();
  // The run ends after so many.
  uint64_t kills = 1000000;
  // Where set, servers are on its far host, and workers reach them by its cable, without a proxy: `plan` makes no
  // faults.
  const TwoHosts* hosts = nullptr;
  // All ways silent for so long, that long after the last time.
  absl::Duration partition_every = absl::InfiniteDuration();
  absl::Duration partition_for = absl::Seconds(1);
  // Of one attempt; short, so that a swallowed reply is noticed soon, yet far longer than an honest answer takes.
  absl::Duration rpc_timeout = absl::Seconds(1);
  // A fault after which nobody is acknowledged for so long is a hang.
  absl::Duration patience = absl::Seconds(30);
};

// What came of one run, or of several.
struct FaultCounts {
  uint64_t pushes_acknowledged = 0;
  uint64_t pushes_lost = 0;
  uint64_t pushes_duplicated = 0;
  uint64_t wrong_weights = 0;
  uint64_t wrong_pulls = 0;
  uint64_t retries = 0;
  // That servers saw and answered as at first.
  uint64_t duplicates_refused = 0;
  uint64_t replies = 0;
  uint64_t replies_dropped = 0;
  uint64_t connections = 0;
  uint64_t kills = 0;
  uint64_t restarts = 0;
  uint64_t partitions = 0;
  uint64_t hangs = 0;
  // From each kill, and from each healing, to the first push that is acknowledged after it.
  std::vector<double> recovery_seconds;
  std::vector<double> healing_seconds;
  // Of all servers together, when the pushes had begun and at the end.
  uint64_t resident_first = 0;
  uint64_t resident_last = 0;
  int descriptors_first = 0;
  int descriptors_last = 0;
  double seconds = 0;

  void Add(const FaultCounts& other);
};

// Runs it. An error is one of the test's own or of a push that was never answered; what was lost or took long is in the
// counts. To be called by the main thread.
absl::StatusOr<FaultCounts> RunFaults(const FaultRunOptions& options);

// The q-quantile, 0 <= q <= 1, of the values; 0 of none.
double Quantile(std::vector<double> values, double q);

}  // namespace ballast
