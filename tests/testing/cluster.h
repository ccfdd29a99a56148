// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "client/client.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "tests/testing/tensors.h"

namespace ballast {

// Starts a server in this process; null, and a failure of the test, if it does not start.
inline std::unique_ptr<Server> StartServer(Server::Options options) {
  auto server = Server::Start(std::move(options));
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

// Owns the servers of one job, in this process on free loopback ports, and makes options for its clients.
// Thread safety: Connect may be called from any thread, the rest by one.
class Cluster {
 public:
  // `change`: sets further options of each server.
  Cluster(
      uint32_t servers, uint32_t workers, absl::FunctionRef<void(Server::Options&)> change = [](Server::Options&) {})
      : workers_(workers) {
    for (uint32_t rank = 0; rank < servers; ++rank) {
      Server::Options options;
      options.rank = rank;
      options.servers = servers;
      options.workers = workers;
      options.max_state_bytes = uint64_t{1} << 28;
      if (rank > 0) options.coordinator = servers_[0]->address();
      change(options);
      servers_.push_back(StartServer(std::move(options)));
    }
  }

  // Options of a client for one of the job's workers; a test changes the ones that it is about.
  ClientOptions Options(uint32_t worker) const {
    ClientOptions options;
    options.coordinator = servers_[0]->address();
    options.job = "cluster";
    options.policy.mutable_sync()->set_deterministic(true);
    options.workers = workers_;
    options.worker = worker;
    return options;
  }

  Server& server(uint32_t rank) { return *servers_[rank]; }

 private:
  const uint32_t workers_;
  std::vector<std::unique_ptr<Server>> servers_;
};

}  // namespace ballast
