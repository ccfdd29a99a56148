// SPDX-License-Identifier: Apache-2.0
#include "worker/serve/grpc_port.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

// A call is a request and its answer; a connection needs few at a time.
constexpr int kStreamsPerConnection = 64;
constexpr int kHandshakeMilliseconds = 10'000;
// A connection that is silent for this long is asked for a sign of life, and closed without one.
constexpr int kSilenceMilliseconds = 60'000;
constexpr int kPingMilliseconds = 20'000;

struct HostPort {
  std::string host;
  int port = 0;
};

absl::StatusOr<HostPort> ParseAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == address.npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("gRPC address: got \"", address, "\", want HOST:PORT, such as 127.0.0.1:7801"));
  }
  return HostPort{address.substr(0, colon), port};
}

void SetLimits(const GrpcPort::Options& options, grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kSilenceMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection);
  // gRPC inflates a whole message before it checks the limit on its size, 4 MiB: that can become gigabytes.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // With more queues, each would keep a thread of its own.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  grpc::ResourceQuota quota("predictions");
  quota.Resize(options.max_bytes);
  // One more waits for calls.
  quota.SetMaxThreads(options.max_calls + 1);
  builder.SetResourceQuota(quota);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcPort>> GrpcPort::Start(const Options& options, grpc::Service* service) {
  const absl::StatusOr<HostPort> listen = ParseAddress(options.address);
  if (!listen.ok()) return listen.status();
  // If the limit on open files is low, it also limits the connections.
  const absl::StatusOr<uint32_t> room = MakeRoomForConnections(0);
  if (!room.ok()) return room.status();
  absl::StatusOr<std::unique_ptr<ConnectionGate>> gate =
      ConnectionGate::Listen(listen->host, listen->port, std::min(options.max_connections, *room));
  if (!gate.ok()) return gate.status();
  grpc::ServerBuilder builder;
  SetLimits(options, builder);
  // Shared because copies of the callback hold it.
  const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
  builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError(absl::StrCat("gRPC cannot serve on ", options.address));
  (*gate)->Open([acceptor](int socket) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = socket;
    acceptor->HandleNewConnection(&connection);
  });
  std::string address = absl::StrCat(listen->host, ":", (*gate)->port());
  return std::unique_ptr<GrpcPort>(new GrpcPort(std::move(address), std::move(server), *std::move(gate)));
}

GrpcPort::~GrpcPort() { Stop(absl::ZeroDuration()); }

void GrpcPort::Stop(absl::Duration grace) {
  gate_->Close();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
}

}  // namespace ballast
