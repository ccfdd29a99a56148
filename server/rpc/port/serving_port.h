// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/connection_gate.h"
#include "common/security/security_options.h"
#include "common/security/tokens.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/rpc/port/callback_threads.h"

namespace ballast {

// Owns one port of a server process: its gRPC server, with its own connections, memory and threads, so that load on
// one port does not affect another. Deliberately does not know the services. Thread safety: all methods may be called
// from any thread, Close by one thread.
class ServingPort {
 public:
  struct Options {
    // HOST:PORT; port 0 picks a free port.
    std::string listen;
    // The flag that sets the address, for errors.
    std::string flag = "--listen";
    SecurityOptions security;
    absl::Duration certificate_refresh;
    // Null: calls need no token.
    std::shared_ptr<const TokenTable> tokens;
    uint32_t max_connections = 0;
    uint32_t max_streams = 0;
    // Limit on the messages that gRPC holds before a call can be refused.
    uint64_t max_bytes = 0;
    int threads = 2;
    // Gets the connections that begin as a data stream, and owns their sockets; until Close. Empty: there are none.
    std::function<void(int socket)> serve_stream;
    // See ConnectionGate::Open.
    std::function<void()> on_full;
  };

  // `add_services` registers the services. INVALID_ARGUMENT for a bad address or bad security options, UNAVAILABLE
  // for a port in use.
  static absl::StatusOr<std::unique_ptr<ServingPort>> Open(
      const Options& options, const std::function<void(grpc::ServerBuilder&)>& add_services);
  ~ServingPort();
  ServingPort(const ServingPort&) = delete;

  // HOST:PORT.
  const std::string& address() const { return address_; }
  grpc::Server& grpc() { return *grpc_; }

  // Makes health checks report that the port does not serve.
  void Refuse();
  // Accepts no more calls and lets calls under way finish within `grace`. Idempotent.
  void Close(absl::Duration grace);

 private:
  explicit ServingPort(int threads) : threads_(threads) {}

  std::string address_;
  CallbackThreads threads_;
  std::unique_ptr<ConnectionGate> gate_;
  std::unique_ptr<grpc::Server> grpc_;
};

// Returns "host" for "host:port".
std::string HostOf(const std::string& address);

}  // namespace ballast
