// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"
#include "tests/fault/network/two_hosts.h"
#include "tests/fault/oracle/fault_counts.h"
#include "tests/fault/proxy/fault_proxy.h"

namespace ballast {

// An oracle's job on real servers, and the faults injected into it.
struct FaultRunOptions {
  // Path of ballast_server.
  std::string server;
  std::vector<std::string> server_flags;
  uint32_t servers = 2;
  uint32_t workers = 4;
  v1::ConsistencyPolicy policy;
  // Unless NONE, servers get their own directories in `state_folder`, which is emptied. With STANDBY each shard has a
  // server and a standby, which workers reach without a proxy.
  v1::Durability::Mode durability = v1::Durability::NONE;
  std::string state_folder;
  // Pushes per worker; the run ends after them, or after `time`.
  uint64_t pushes = 500;
  absl::Duration time = absl::InfiniteDuration();
  // Size of tensors that nobody pushes.
  uint32_t idle_mib = 0;
  // Faults on each worker's connections to each server.
  FaultPlan plan;
  uint64_t seed = 1;
  // Interval at which one server after the other is killed (SIGKILL) and restarted on the same port, counted from the
  // recovery of the previous one; with STANDBY, once each standby could take over.
  absl::Duration kill_every = absl::InfiniteDuration();
  // With STANDBY: servers are stopped instead, and continue after their standbys took over, without being told. The
  // server with the coordinator is not stopped.
  bool freeze = false;
  // The run ends after this many kills.
  uint64_t kills = 1000000;
  // If set, servers are on its far host, and workers reach them by its cable without a proxy; `plan` then injects no
  // faults.
  const TwoHosts* hosts = nullptr;
  // Duration of a network partition, and time between the end of one and the next.
  absl::Duration partition_every = absl::InfiniteDuration();
  absl::Duration partition_for = absl::Seconds(1);
  // Timeout of one attempt: short, to notice a dropped reply soon, yet far longer than a normal response takes.
  absl::Duration rpc_timeout = absl::Seconds(1);
  // A fault after which no push is acknowledged for this long is a hang.
  absl::Duration timeout = absl::Seconds(30);
};

// An error is a failure of the test itself, or a push without a response; losses and long recoveries are in the
// counts. To be called by the main thread.
absl::StatusOr<FaultCounts> RunFaults(const FaultRunOptions& options);

}  // namespace ballast
