// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"
#include "client/coordinator_link.h"
#include "tests/fault/network/two_hosts.h"
#include "tests/fault/programs/program.h"

namespace ballast {

// Owns real servers that are killed one after the other, each restarted on its port from its own state directory.
// Either each has a shard and knows nothing of the others, so its clients get all addresses; or servers and standbys
// form one job, whose coordinator knows which process serves. Knows nothing of the job's work. Thread safety: confined
// to the main thread, like ServerProcess.
class ServerFleet {
 public:
  struct Options {
    // Path of ballast_server.
    std::string server;
    std::vector<std::string> flags;
    uint32_t servers = 2;
    uint32_t workers = 4;
    // Unless NONE, servers get their own directories in `state_folder`, which is emptied. With STANDBY each shard has
    // a server and a standby.
    v1::Durability::Mode durability = v1::Durability::NONE;
    std::string state_folder;
    // If set, servers are on its far host; it must outlive the fleet.
    const TwoHosts* hosts = nullptr;
  };

  static absl::StatusOr<std::unique_ptr<ServerFleet>> Start(Options options);

  // Without standbys: the servers' addresses by rank, and no coordinator. With standbys: only the coordinator.
  std::vector<std::string> addresses() const;
  std::string coordinator() const { return paired() ? processes_[0]->address() : ""; }

  // Waits until any process may die: with standbys, until every shard's standby could take over.
  absl::Status AwaitSpares(absl::Duration timeout);
  // Sends SIGKILL to the next process in turn; returns after it has ended.
  absl::Status KillNext();
  // True if the killed process's shard is served before that process is restarted. False for the process with the
  // coordinator, which decides which server serves.
  bool GoesOnWithout() const { return paired() && victim_ != 0; }
  // Restarts the killed process on its port; returns when it serves.
  absl::Status Restart();
  // With standbys: stops the next process in turn, except the one with the coordinator. Thaw continues it; it does
  // not know what happened in between.
  void FreezeNext();
  void Thaw();

  // Sends SIGTERM; OK if all processes ended successfully. Servers with standbys are killed: their job is not done,
  // and would fail when the last process of a shard leaves.
  absl::Status End();

  // Use of all processes together.
  ProcessUse use() const;

 private:
  explicit ServerFleet(Options options) : options_(std::move(options)) {}
  bool paired() const { return options_.durability == v1::Durability::STANDBY; }
  absl::Status StartProcess(uint32_t number);
  // Returns the output of the present processes.
  std::string Outputs();
  absl::Status OnServersHost(const std::function<absl::Status()>& run) const;

  const Options options_;
  // First the processes of all shards, then their standbys, if any.
  std::vector<std::unique_ptr<ServerProcess>> processes_;
  // Set only with standbys.
  std::unique_ptr<CoordinatorLink> link_;
  // Number of processes killed or frozen, and index of the last one.
  size_t harmed_ = 0, victim_ = 0;
};

}  // namespace ballast
