// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/port/serving_port.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/data_stream/stream_frame.h"
#include "common/rpc/credentials.h"
#include "common/wire/limits.h"
#include "grpc/compression.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "server/rpc/port/access_guard.h"
#include "server/rpc/port/inspected_reads.h"

namespace ballast {
namespace {

// The margin lets oversized messages get an error response instead of an aborted call.
constexpr int kMaxReceivedBytes = kMaxMessageBytes + (64 << 10);

// Limit on a connection's handshake, so that idle connections do not keep others out.
constexpr int kHandshakeMilliseconds = 20'000;
// A peer that has sent nothing for this time gets a ping, and is lost if it does not respond to that in time.
constexpr int kSilenceMilliseconds = 60'000;
constexpr int kPingMilliseconds = 20'000;

struct HostPort {
  std::string host;
  int port = 0;
};

absl::StatusOr<HostPort> ParseAddress(const std::string& flag, const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": got \"", address, "\", want HOST:PORT with a port of 0 to 65535"));
  }
  return HostPort{address.substr(0, colon), port};
}

void SetLimits(const ServingPort::Options& options, grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kSilenceMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(options.max_streams));
  builder.SetMaxReceiveMessageSize(kMaxReceivedBytes);
  // gRPC inflates a whole message before it checks the limit on its size: 4 MiB can become gigabytes. Ballast's
  // clients do not compress.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetMaxSendMessageSize(kMaxReceivedBytes);
  grpc::ResourceQuota quota(options.flag);
  quota.Resize(options.max_bytes);
  builder.SetResourceQuota(quota);
}

}  // namespace

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

absl::StatusOr<std::unique_ptr<ServingPort>> ServingPort::Open(
    const Options& options, const std::function<void(grpc::ServerBuilder&)>& add_services) {
  absl::StatusOr<HostPort> listen = ParseAddress(options.flag, options.listen);
  if (!listen.ok()) return listen.status();
  if (absl::Status status = CheckReadsAreInspected(); !status.ok()) return status;
  auto credentials = MakeServerCredentials(options.security, options.certificate_refresh);
  if (!credentials.ok()) return credentials.status();
  const bool tls = options.security.has_tls();
  if (tls && options.tokens != nullptr) (*credentials)->SetAuthMetadataProcessor(MakeTokenGate(options.tokens));
  auto gate = ConnectionGate::Listen(listen->host, listen->port, options.max_connections);
  if (!gate.ok()) return gate.status();

  std::unique_ptr<ServingPort> port(new ServingPort(options.threads));
  port->gate_ = *std::move(gate);
  port->address_ = absl::StrCat(listen->host, ":", port->gate_->port());
  grpc::ServerBuilder builder;
  SetLimits(options, builder);
  // Shared because copies of the callback hold it.
  const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, *credentials);
  add_services(builder);
  {
    CallbackThreads::Scope scope(&port->threads_);
    port->grpc_ = builder.BuildAndStart();
    if (port->grpc_ == nullptr) return absl::InternalError(absl::StrCat("gRPC cannot serve on ", options.listen));
    if (absl::Status status = scope.Check(); !status.ok()) return status;
  }
  ConnectionOpening opening;
  if (options.serve_stream) {
    opening = {std::string(kStreamOpening), kStreamOpening.size() + kStreamTicketBytes, options.serve_stream};
  }
  port->gate_->Open(
      [acceptor, tls](int socket) {
        if (!tls && !InspectReads(socket)) {
          close(socket);
          return;
        }
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
        connection.fd = socket;
        acceptor->HandleNewConnection(&connection);
      },
      std::move(opening), options.on_full);
  return port;
}

void ServingPort::Refuse() {
  if (grpc_ == nullptr) return;
  if (auto* health = grpc_->GetHealthCheckService(); health != nullptr) health->SetServingStatus(false);
}

void ServingPort::Close(absl::Duration grace) {
  if (grpc_ == nullptr) return;
  Refuse();
  gate_->Close();
  grpc_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  grpc_->Wait();
  grpc_.reset();
}

ServingPort::~ServingPort() { Close(absl::ZeroDuration()); }

}  // namespace ballast
