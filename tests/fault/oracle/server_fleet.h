// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"
#include "client/coordinator_link.h"
#include "tests/fault/network/two_hosts.h"
#include "tests/fault/oracle/server_process.h"

namespace ballast {

struct ServerFleetOptions {
  // Path of ballast_server.
  std::string server;
  std::vector<std::string> server_flags;
  uint32_t shards = 2;
  uint32_t workers = 4;
  // With more than none servers get folders of their own in `state_folder`, which is emptied. With STANDBY each shard
  // has a pair of servers, and only the one with the coordinator a folder.
  v1::Durability::Mode durability = v1::Durability::NONE;
  std::string state_folder;
  // Where set, servers are on its far host.
  const TwoHosts* hosts = nullptr;
};

// Real servers that are killed one after the other. Either each has a shard and knows nothing of the others, so that
// its clients are given all addresses; or they come in pairs that make up one job, whose coordinator knows who serves.
// Thread safety: confined to the main thread, as ServerProcess is.
class ServerFleet {
 public:
  static absl::StatusOr<std::unique_ptr<ServerFleet>> Start(ServerFleetOptions options);

  // The servers by rank; or else, of pairs, empty, and the coordinator's address.
  std::vector<std::string> addresses() const;
  std::string coordinator() const { return paired() ? processes_[0]->address() : ""; }

  // Until any one of them may die: of pairs, until every shard's standby could take over.
  absl::Status AwaitSpares(absl::Duration patience);
  // With SIGKILL, each in turn; returns when it is gone.
  absl::Status KillNext();
  // Whether the shard of the one that was killed is to be served before that one is started again. That of the process
  // with the coordinator, which says who serves, is not.
  bool GoesOnWithout() const { return paired() && victim_ != 0; }
  // The one that was killed, on its port; returns when it serves.
  absl::Status Restart();
  // Of pairs: stops each in turn, but the one with the coordinator; and has it go on, not knowing of what was
  // meanwhile.
  void FreezeNext();
  void Thaw() { processes_[victim_]->Signal(SIGCONT); }

  // With SIGTERM; OK where all ended well. Pairs are killed: their job is not done, and fails where the last one of a
  // shard leaves.
  absl::Status End();

  // Of all together.
  ProcessUse use() const;

 private:
  explicit ServerFleet(ServerFleetOptions options) : options_(std::move(options)) {}
  bool paired() const { return options_.durability == v1::Durability::STANDBY; }
  absl::Status StartProcess(uint32_t number);
  // The present processes.
  std::string WhatTheySaid();
  absl::Status OnServersHost(const std::function<absl::Status()>& run) const;

  const ServerFleetOptions options_;
  // Of pairs first one for each shard, then their standbys.
  std::vector<std::unique_ptr<ServerProcess>> processes_;
  // Of pairs.
  std::unique_ptr<CoordinatorLink> link_;
  // Of those that were killed or frozen: how many, and the last one.
  size_t harmed_ = 0, victim_ = 0;
};

}  // namespace ballast
