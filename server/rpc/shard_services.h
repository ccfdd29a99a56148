// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/concurrency/executor.h"
#include "common/security/tokens.h"
#include "grpcpp/server_builder.h"
#include "server/replication/standby_receiver.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/parameter_service.h"
#include "server/rpc/port/access_guard.h"
#include "server/rpc/serving_gate.h"
#include "server/rpc/standby_service.h"
#include "server/rpc/watch/row_watch_calls.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// Owns the services through which calls reach one shard, and the executors for their work that depends on the amount
// of data or on a disk. Deliberately does not know the ports. Thread safety: all methods may be called from any
// thread.
class ShardServices {
 public:
  // All pointers must outlive this; null `tokens`: calls need no token; null `tracing`: no calls are traced.
  ShardServices(uint32_t rank, uint64_t max_bytes_in_flight, ParameterShard* shard, StandbyReceiver* receiver,
                const ServingGate* serving, const TokenTable* tokens, CallTracing* tracing = nullptr);

  // Registers the services of the data port, including its generic service.
  void AddTo(grpc::ServerBuilder& data);
  // Registers the services of the control port, without a generic service.
  void AddToControl(grpc::ServerBuilder& control) { control.RegisterService(&status_service_); }

  // Returns what GetStatus answers.
  v1::GetStatusResponse Describe() const { return parameter_service_.Describe(); }

  // Runs changes that may wait for a disk.
  Executor& work() { return work_; }

  // Serves the data stream that a connection to the data port begins; see DataPlane.
  void ServeStream(int socket) { data_plane_.ServeStream(socket); }
  // Sets how data streams are; see StreamRegistry. Call it before the port opens.
  void ConfigureStreams(bool tls, size_t most) { data_plane_.streams().Configure(tls, most); }

  // Ends the sharing of memory with clients, their data streams, and the watching of rows.
  void CloseStreams(const absl::Status& reason) {
    data_plane_.regions().Close(reason);
    data_plane_.streams().Close(reason);
    watches_.Close(reason);
  }
  // Runs all queued tasks and waits for them, then refuses new ones. Idempotent.
  void Shutdown();

 private:
  const AccessGuard access_;
  StandbyServiceAdapter standby_service_;
  Executor declarations_;
  Executor work_;
  DataPlane data_plane_;
  RowWatchCalls watches_;
  ParameterServiceAdapter parameter_service_;
  ShardStatusService status_service_;
};

}  // namespace ballast
