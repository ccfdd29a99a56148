// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/flight/flight_dump.h"
#include "common/job/job_config.h"
#include "common/program/core_count.h"
#include "common/rpc/channel.h"
#include "common/rpc/connection_gate.h"
#include "common/rpc/credentials.h"
#include "common/status/error_reason.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/rpc/standby_service.h"
#include "server/server_metrics.h"

namespace ballast {
namespace {

// Limit on the messages that gRPC holds at the control port before a call can be refused.
constexpr uint64_t kControlBytes = uint64_t{64} << 20;
constexpr int kControlThreads = 2;
// gRPC's own bounds for all servers of a process.
constexpr int kMinDataThreads = 2;
constexpr int kMaxDataThreads = 16;

// Returns ":7701" for "0.0.0.0:7701".
std::string PortOf(const std::string& address) { return address.substr(std::min(address.rfind(':'), address.size())); }

// Returns the address at which others reach the server; port 0 of `advertise` is the one on which it listens.
std::string Advertised(const std::string& advertise, const std::string& listens) {
  if (advertise.empty()) return listens;
  return PortOf(advertise) == ":0" ? absl::StrCat(HostOf(advertise), PortOf(listens)) : advertise;
}

// Decides from the flags alone which of the two processes of rank 0 runs the coordinator.
bool Coordinates(const Server::Options& options) {
  if (options.rank > 0) return false;
  const std::string& own = options.advertise.empty() ? options.listen : options.advertise;
  return !options.with_standby || options.coordinator.empty() || options.coordinator == own ||
         options.coordinator == absl::StrCat(HostOf(own), PortOf(options.control_listen));
}

}  // namespace

Server::Server(Options options, std::shared_ptr<const TokenTable> tokens)
    : options_(std::move(options)),
      tokens_(std::move(tokens)),
      shard_host_(
          options_, tokens_.get(), [this] { HeartbeatNow(); },
          [this](const std::string& address) -> absl::StatusOr<std::unique_ptr<StandbyStream>> {
            absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = OpenServer(address);
            if (!channel.ok()) return channel.status();
            return CallStandby(*channel);
          }) {}

void Server::HeartbeatNow() {
  absl::MutexLock lock(&member_mutex_);
  if (member_ != nullptr) member_->HeartbeatNow();
}

absl::StatusOr<std::shared_ptr<const TokenTable>> Server::LoadTokens(const Options& options) {
  if (options.security.token_file.empty()) return nullptr;
  absl::StatusOr<TokenTable> tokens = TokenTable::Load(options.security.token_file);
  if (!tokens.ok()) return tokens.status();
  if (tokens->admin_token().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--token_file ", options.security.token_file,
                                                   ": has no token of role admin, which the job's servers present to "
                                                   "server 0"));
  }
  return std::make_shared<const TokenTable>(*std::move(tokens));
}

absl::Status Server::Ready() const {
  switch (phase_.load()) {
    case Phase::kStarting:
      return WithReason(v1::ERROR_REASON_NOT_SERVING, absl::UnavailableError("the server is starting"));
    case Phase::kEnding:
      return WithReason(v1::ERROR_REASON_DRAINING, absl::UnavailableError("the server is shutting down"));
    case Phase::kServing:
      break;
  }
  return shard_host_.Ready();
}

absl::Status Server::ServePages() {
  if (options_.http_listen.empty()) return absl::OkStatus();
  StatusPages::Sources sources;
  sources.metrics = [this] {
    const bool coordinates = phase_.load() != Phase::kStarting && coordinator_host_ != nullptr;
    const v1::GetStatusResponse shard = shard_host_.services().Describe();
    if (!coordinates) return ServerMetrics(shard, nullptr);
    Coordinator& coordinator = coordinator_host_->coordinator();
    const JobConfig config = this->shard().job_config();
    const JobView job{coordinator.Describe(), coordinator.checkpoint_interval(),
                      StalenessBound(config.policy, config.workers)};
    return ServerMetrics(shard, &job);
  };
  sources.flight = [this] {
    return FlightDumpText(TakeFlightDump(absl::StrCat("server ", options_.rank), "read over HTTP"));
  };
  sources.ready = [this] { return Ready(); };
  sources.job = [this] { return shard().job_name(); };
  auto pages = StatusServer::Start(options_.http_listen, options_.security, tokens_, std::move(sources));
  if (!pages.ok()) return pages.status();
  pages_ = *std::move(pages);
  return absl::OkStatus();
}

absl::Status Server::Listen() {
  grpc::EnableDefaultHealthCheckService(true);
  if (options_.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const absl::StatusOr<uint32_t> room = MakeRoomForConnections(options_.max_connections, options_.workers);
  if (!room.ok()) return room.status();
  ServingPort::Options port;
  port.security = options_.security;
  port.certificate_refresh = options_.certificate_refresh;
  port.tokens = tokens_;
  port.max_connections = *room;
  port.max_streams = options_.max_streams;
  port.on_full = [this, room = *room] {
    options_.log(absl::StrCat("warning: server ", options_.rank, " closes new connections: it has ", room,
                              " at one port, the most that --max_connections allows"));
  };

  port.listen = options_.control_listen.empty() ? absl::StrCat(HostOf(options_.listen), ":0") : options_.control_listen;
  port.flag = "--control_listen";
  port.max_bytes = kControlBytes;
  port.threads = kControlThreads;
  auto control = ServingPort::Open(port, [this](grpc::ServerBuilder& builder) {
    shard_host_.services().AddToControl(builder);
    builder.RegisterCallbackGenericService(&unknown_methods_);
    if (coordinator_host_ != nullptr) builder.RegisterService(&coordinator_host_->control_service());
  });
  if (!control.ok()) return control.status();

  port.listen = options_.listen;
  port.flag = "--listen";
  port.max_bytes = options_.max_bytes_in_flight;
  port.threads = std::clamp(CoreCount() / 2, kMinDataThreads, kMaxDataThreads);
  // A client has a connection for gRPC, too, which must not lack because of others' streams.
  shard_host_.services().ConfigureStreams(options_.security.has_tls(), *room / 2);
  port.serve_stream = [this](int socket) { shard_host_.services().ServeStream(socket); };
  auto data = ServingPort::Open(port, [this](grpc::ServerBuilder& builder) {
    shard_host_.services().AddTo(builder);
    // Clients may know this port only.
    if (coordinator_host_ != nullptr) builder.RegisterService(&coordinator_host_->data_service());
  });
  if (!data.ok()) return data.status();
  control_ = *std::move(control);
  data_ = *std::move(data);
  address_ = data_->address();
  control_address_ = control_->address();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Server::OpenCoordinator() {
  if (coordinator_host_ == nullptr) return OpenServer(options_.coordinator);
  // An in-process channel, because the listen address (0.0.0.0, for example) may not match the certificate.
  absl::StatusOr<Credentials> own = Credentials::Make({}, tokens_ == nullptr ? "" : tokens_->admin_token());
  if (!own.ok()) return own.status();
  return OpenInProcessChannel(control_->grpc(), *own);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Server::OpenServer(const std::string& address) const {
  const std::string token = tokens_ == nullptr ? "" : tokens_->admin_token();
  absl::StatusOr<Credentials> credentials = Credentials::Make(options_.security, token, options_.certificate_refresh);
  if (!credentials.ok()) return credentials.status();
  if (absl::Status status = credentials->CheckTarget(address); !status.ok()) return status;
  return OpenChannel(address, *credentials);
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Options options) {
  if (options.servers < 1 || options.servers > 4096 || options.workers < 1 || options.workers > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", options.servers, " servers and ", options.workers, " workers, want 1 to 4096 of each"));
  }
  if (options.rank > 0 && options.coordinator.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("server ", options.rank, " needs --coordinator, the address of server 0"));
  }
  if (options.with_standby && options.rank >= 2 * options.servers) {
    return absl::InvalidArgumentError(absl::StrCat("--rank: got ", options.rank, " with --with_standby, want below ",
                                                   2 * options.servers, " (twice --servers)"));
  }
  if (absl::Status status = CheckServing(options.listen, options.security); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<const TokenTable>> tokens = LoadTokens(options);
  if (!tokens.ok()) return tokens.status();
  if (options.with_standby) options.rank %= options.servers;
  std::unique_ptr<Server> server(new Server(std::move(options), *std::move(tokens)));
  if (absl::Status status = server->ServePages(); !status.ok()) return status;
  ShardHost& shard_host = server->shard_host_;
  if (absl::Status status = shard_host.Open(); !status.ok()) return status;
  if (Coordinates(server->options_)) {
    auto host =
        CoordinatorHost::Open(server->options_, server->tokens_.get(), shard_host.checkpoints(), shard_host.resume());
    if (!host.ok()) return host.status();
    server->coordinator_host_ = *std::move(host);
  }
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  if (absl::Status status = server->OpenCoordinator().status(); !status.ok()) return status;
  const Options& o = server->options_;
  CoordinatorMember::Options member;
  member.coordinator = server->coordinator_host_ != nullptr ? server->address_ : o.coordinator;
  member.open_channel = [server = server.get()] { return server->OpenCoordinator().value_or(nullptr); };
  member.rank = o.rank;
  member.with_standby = o.with_standby;
  member.servers = o.servers;
  member.address = Advertised(o.advertise, server->address_);
  member.control_address = absl::StrCat(HostOf(member.address), PortOf(server->control_address_));
  member.coordinator_timeout = o.coordinator_timeout;
  member.gather_timeout = o.gather_timeout;
  auto joining = std::make_unique<CoordinatorMember>(std::move(member), shard_host.MemberEvents());
  {
    absl::MutexLock lock(&server->member_mutex_);
    server->member_ = std::move(joining);
  }
  server->phase_ = Phase::kServing;
  return server;
}

bool Server::job_finished() {
  if (coordinator_host_ != nullptr) {
    return coordinator_host_->coordinator().progress().state() == v1::JOB_STATE_FINISHED;
  }
  absl::MutexLock lock(&member_mutex_);
  return member_ != nullptr && member_->job_state() == v1::JOB_STATE_FINISHED;
}

std::string Server::SaveCheckpoint(absl::Duration timeout) {
  CoordinatorMember* member = nullptr;
  {
    absl::MutexLock lock(&member_mutex_);
    member = member_.get();
  }
  // Only Drain, on the caller's thread, ends the membership.
  return member == nullptr || options_.checkpoint_dir.empty() ? "" : member->SaveCheckpoint(timeout);
}

void Server::Drain(absl::Duration grace) {
  if (data_ == nullptr) return;
  phase_ = Phase::kEnding;
  const absl::Time deadline = absl::Now() + grace;
  data_->Refuse();
  control_->Refuse();
  std::unique_ptr<CoordinatorMember> member;
  {
    absl::MutexLock lock(&member_mutex_);
    member = std::move(member_);
  }
  member.reset();
  const absl::Status reason =
      WithReason(v1::ERROR_REASON_DRAINING,
                 absl::UnavailableError(absl::StrCat("server ", options_.rank, " at ", address_, " is shutting down")),
                 {{"rank", absl::StrCat(options_.rank)}, {"address", address_}});
  shard_host_.Close(reason);
  // Otherwise the ports would stay open for workers that wait for a lease or a newer map until `grace` is over.
  if (coordinator_host_ != nullptr) coordinator_host_->coordinator().EndWaits(reason);
  data_->Close(grace);
  control_->Close(deadline - absl::Now());
  if (pages_ != nullptr) pages_->Stop();
  data_.reset();
  control_.reset();
  shard_host_.services().Shutdown();
}

Server::~Server() { Drain(absl::Seconds(1)); }

}  // namespace ballast
