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

// A job of the oracle's on real servers, and what is done to it meanwhile.
struct FaultRunOptions {
  // Path of ballast_server.
  std::string server;
  std::vector<std::string> server_flags;
  uint32_t servers = 2;
  uint32_t workers = 4;
  v1::ConsistencyPolicy policy;
  // With more than none servers get folders of their own in `state_folder`, which is emptied. With STANDBY each shard
  // has a pair of servers, which workers reach without a proxy.
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
  // kill -9 of one server after the other and its restart on the same port, so long after the last one works again; of
  // pairs, when each standby could take over.
  absl::Duration kill_every = absl::InfiniteDuration();
  // Of pairs: servers are stopped instead, and go on when others have taken over, not knowing of that. Not the one with
  // the coordinator.
  bool freeze = false;
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

// Runs it. An error is one of the test's own or of a push that was never answered; what was lost or took long is in the
// counts. To be called by the main thread.
absl::StatusOr<FaultCounts> RunFaults(const FaultRunOptions& options);

}  // namespace ballast
