// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "gtest/gtest.h"
#include "server/server.h"

namespace ballast {

// Owns the servers of one job, in this process on free loopback ports, and makes options for its clients.
// Thread safety: Connect may be called from any thread, the rest by one.
class Cluster {
 public:
  Cluster(uint32_t servers, uint32_t workers) : workers_(workers) {
    for (uint32_t rank = 0; rank < servers; ++rank) {
      Server::Options options;
      options.rank = rank;
      options.servers = servers;
      options.workers = workers;
      options.max_state_bytes = uint64_t{1} << 28;
      if (rank > 0) options.coordinator = servers_[0]->address();
      auto server = Server::Start(std::move(options));
      EXPECT_TRUE(server.ok()) << server.status();
      servers_.push_back(*std::move(server));
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

// Connects and declares the tensors.
inline absl::StatusOr<std::unique_ptr<Client>> Join(ClientOptions options, const std::vector<v1::TensorSpec>& specs) {
  auto client = Client::Connect(std::move(options));
  if (!client.ok()) return client.status();
  if (absl::Status status = (*client)->Declare(specs); !status.ok()) return status;
  return client;
}

// A tensor of rank 1, all 100, with learning rate 1.
inline v1::TensorSpec Spec(uint32_t id, const std::string& name, int64_t elements) {
  v1::TensorSpec spec;
  spec.set_id(id);
  spec.set_name(name);
  spec.add_shape(elements);
  spec.mutable_initializer()->mutable_constant()->set_value(100);
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  return spec;
}

}  // namespace ballast
