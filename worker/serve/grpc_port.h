// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/impl/service_type.h>
#include <grpcpp/server.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/connection_gate.h"

namespace ballast {

// Owns the gRPC server of one service whose calls compute. Invariant: callers of any number hold a bounded number of
// connections, threads and bytes of messages; further ones are closed or refused with RESOURCE_EXHAUSTED. Deliberately
// does not know the service, nor TLS. Thread safety: one thread at a time.
class GrpcPort {
 public:
  struct Options {
    // HOST:PORT; port 0 takes a free one.
    std::string address;
    uint32_t max_connections = 256;
    // Calls at a time, of all connections.
    int max_calls = 32;
    // Messages that gRPC holds, about.
    uint64_t max_bytes = uint64_t{64} << 20;
  };

  // The service must outlive this. INVALID_ARGUMENT if the address is not HOST:PORT; another error, which names the
  // address, if the port is in use or must not be used.
  static absl::StatusOr<std::unique_ptr<GrpcPort>> Start(const Options& options, grpc::Service* service);
  // Ends calls in progress.
  ~GrpcPort();
  GrpcPort(const GrpcPort&) = delete;

  // HOST:PORT, with the port that was taken.
  const std::string& address() const { return address_; }

  // Accepts no more calls, and lets those in progress finish within `grace`. Idempotent.
  void Stop(absl::Duration grace);

 private:
  GrpcPort(std::string address, std::unique_ptr<grpc::Server> server, std::unique_ptr<ConnectionGate> gate)
      : address_(std::move(address)), server_(std::move(server)), gate_(std::move(gate)) {}

  const std::string address_;
  const std::unique_ptr<grpc::Server> server_;
  // Passes connections to the server, so it is destroyed first.
  const std::unique_ptr<ConnectionGate> gate_;
};

}  // namespace ballast
