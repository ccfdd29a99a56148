// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/security_options.h"
#include "common/security/tokens.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/rpc/port/callback_threads.h"
#include "server/rpc/port/connection_gate.h"

namespace ballast {

// One port of a server process: the gRPC server behind it, with connections, memory and threads of its own, so that
// what is done to one port takes nothing from another's. Knows none of the services.
// Thread safety: all methods may be called from any thread, Close by one.
class ServingPort {
 public:
  struct Options {
    // host:port; port 0 takes a free one.
    std::string listen;
    // The flag by which another address is chosen, for errors.
    std::string flag = "--listen";
    SecurityOptions security;
    absl::Duration certificate_refresh;
    // Null: no tokens are wanted.
    std::shared_ptr<const TokenTable> tokens;
    uint32_t max_connections = 0;
    uint32_t max_streams = 0;
    // Messages that gRPC holds before a call can be refused.
    uint64_t max_bytes = 0;
    int threads = 2;
  };

  // `add_services` registers what is served. INVALID_ARGUMENT for a bad address or security that does not fit,
  // UNAVAILABLE for a port in use.
  static absl::StatusOr<std::unique_ptr<ServingPort>> Open(
      const Options& options, const std::function<void(grpc::ServerBuilder&)>& add_services);
  // As Close, at once.
  ~ServingPort();
  ServingPort(const ServingPort&) = delete;

  // host:port.
  const std::string& address() const { return address_; }
  grpc::Server& grpc() { return *grpc_; }

  // Health checks say from now on that it does not serve.
  void Refuse();
  // Lets calls under way end within `grace`. Idempotent.
  void Close(absl::Duration grace);

 private:
  explicit ServingPort(int threads) : threads_(threads) {}

  std::string address_;
  CallbackThreads threads_;
  std::unique_ptr<ConnectionGate> gate_;
  std::unique_ptr<grpc::Server> grpc_;
};

// "host" of "host:port".
std::string HostOf(const std::string& address);

}  // namespace ballast
