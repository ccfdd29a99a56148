// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/concurrency/parallel_for.h"
#include "common/rpc/channel.h"
#include "common/status/error_reason.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/rpc/standby_call.h"

namespace ballast {
namespace {

// Limit on the messages that gRPC holds at the control port before a call can be refused.
constexpr uint64_t kControlBytes = uint64_t{64} << 20;
constexpr int kControlThreads = 2;
// gRPC's own bounds for all servers of a process.
constexpr int kMinDataThreads = 2;
constexpr int kMaxDataThreads = 16;

// Limit on the tasks queued in each executor. Nearly all hold part of the budget of bytes in flight, which ends
// first.
constexpr size_t kMaxQueued = size_t{1} << 16;
// Two, because a slow disk may block one.
constexpr int kMinWorkThreads = 2;

// Returns ":7701" for "0.0.0.0:7701".
std::string PortOf(const std::string& address) { return address.substr(std::min(address.rfind(':'), address.size())); }

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
      coordinates_(Coordinates(options_)),
      serving_(!options_.with_standby),
      shard_(ShardOptions(), Clock::Real()),
      shard_access_(tokens_.get(), [this] { return shard_.job_name(); }),
      declarations_(1, kMaxQueued),
      work_(std::max(kMinWorkThreads, CoreCount()), kMaxQueued),
      data_plane_(options_.rank, &shard_, &shard_access_, &serving_, &work_, options_.max_bytes_in_flight),
      parameter_service_(options_.rank, &shard_, &data_plane_, &shard_access_, &serving_, {&declarations_, &work_}) {
  receiver_ = std::make_unique<StandbyReceiver>(options_.rank, &shard_, [this] { HeartbeatNow(); });
  standby_service_ = std::make_unique<StandbyServiceAdapter>(receiver_.get(), &shard_access_);
  if (!options_.with_standby) return;
  StandbyJournal::Options journal;
  journal.shard = options_.rank;
  journal.max_queued_bytes = options_.max_bytes_in_flight;
  journal.open = [this](const std::string& address) -> absl::StatusOr<std::unique_ptr<StandbyStream>> {
    absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = OpenServer(address);
    if (!channel.ok()) return channel.status();
    return CallStandby(*channel);
  };
  journal.on_news = [this] { HeartbeatNow(); };
  journal.log = options_.log;
  standby_journal_ = std::make_unique<StandbyJournal>(std::move(journal), &shard_);
}

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

absl::Status Server::MakeCoordinator() {
  if (!coordinates_) return absl::OkStatus();
  if (!options_.state_dir.empty()) {
    auto store = CoordinatorStore::Open(options_.files, options_.state_dir + "/coordinator", Clock::Real());
    if (!store.ok()) return store.status();
    coordinator_store_ = *std::move(store);
  }
  absl::StatusOr<uint64_t> first_checkpoint = 1;
  if (checkpoints_.has_value()) first_checkpoint = checkpoints_->NextId();
  if (!first_checkpoint.ok()) return first_checkpoint.status();
  std::optional<internal::v1::CheckpointManifest> resume;
  if (resume_.has_value()) resume = resume_->manifest();
  coordinator_ = std::make_unique<Coordinator>(
      Coordinator::Options{.servers = options_.servers,
                           .workers = options_.workers,
                           .member_ttl = options_.member_ttl,
                           .with_standby = options_.with_standby,
                           .journal = coordinator_store_.get(),
                           .checkpoints = checkpoints_.has_value() ? &*checkpoints_ : nullptr,
                           .disk_thread = true,
                           // This process sends its own heartbeats at least twice as often.
                           .longest_silence = options_.member_ttl / 5 * 2,
                           .first_checkpoint = *first_checkpoint,
                           .resume = std::move(resume),
                           .log = options_.log},
      Clock::Real());
  coordinator_access_ = std::make_unique<AccessGuard>(
      tokens_.get(), [coordinator = coordinator_.get()] { return coordinator->job_name(); });
  coordinator_service_ = std::make_unique<CoordinatorServiceAdapter>(coordinator_.get(), coordinator_access_.get());
  if (coordinator_store_ == nullptr || coordinator_store_->recovered().empty()) return absl::OkStatus();
  internal::v1::CoordinatorState state;
  if (!state.ParseFromString(coordinator_store_->recovered())) {
    return absl::DataLossError(absl::StrCat(options_.state_dir, "/coordinator: the last record does not parse"));
  }
  return coordinator_->Restore(state);
}

ParameterShard::Options Server::ShardOptions() {
  ParameterShard::Options options;
  options.rank = options_.rank;
  options.max_state_bytes = options_.max_state_bytes;
  options.max_wait_bytes = DataPlane::WaitBytes(options_.max_bytes_in_flight);
  if (!options_.state_dir.empty() || options_.with_standby) {
    options.open_journal = [this](const JobConfig& job) { return OpenJournal(job); };
  }
  options.keeps_checkpoints = !options_.checkpoint_dir.empty();
  options.resume_from = options_.resume;
  options.load_checkpoint = [](const std::string& path, const JobConfig& job,
                               absl::Span<const OwnedTensor> tensors) -> absl::StatusOr<Resumption> {
    const absl::StatusOr<CheckpointSource> source = CheckpointSource::Open(path);
    if (!source.ok()) return source.status();
    return source->Load(job, tensors);
  };
  return options;
}

absl::StatusOr<ShardJournal*> Server::OpenJournal(const JobConfig& job) {
  if (job.durability.mode() == v1::Durability::STANDBY) {
    if (!options_.with_standby) {
      return WithReason(
          v1::ERROR_REASON_NO_STORAGE,
          absl::FailedPreconditionError(absl::StrCat("job \"", job.name, "\" needs durability STANDBY, but shard ",
                                                     options_.rank, " was started without --with_standby")),
          {{"job", job.name}});
    }
    // The changes that a standby receives are already in its server's journal.
    if (!serving_.Check().ok()) return nullptr;
    return standby_journal_.get();
  }
  if (options_.with_standby) {
    return WithReason(
        v1::ERROR_REASON_NO_STORAGE,
        absl::FailedPreconditionError(absl::StrCat(
            "job \"", job.name, "\" has durability ", v1::Durability::Mode_Name(job.durability.mode()), ", but shard ",
            options_.rank, " was started with --with_standby, which needs durability STANDBY")),
        {{"job", job.name}});
  }
  return store_->Start(job);
}

void Server::AssumeRole(const v1::Member& member) {
  if (!options_.with_standby) return;
  if (member.role() == v1::ROLE_STANDBY) {
    receiver_->Begin(member.incarnation());
    return options_.on_part(member);
  }
  standby_journal_->BeginServing(member.incarnation());
  if (shard_.job_name().empty()) {
    serving_.Open();
    return options_.on_part(member);
  }
  // From here on the stream from the previous server is closed.
  receiver_->TakeOver([this, member](const absl::Status& status) {
    if (!status.ok()) return options_.on_fatal(status);
    standby_journal_->BeginJob();
    shard_.StartJournal(standby_journal_.get());
    serving_.Open();
    options_.on_part(member);
  });
}

absl::Status Server::OpenCheckpoints() {
  if (!options_.resume.empty()) {
    absl::StatusOr<CheckpointSource> source = CheckpointSource::Open(options_.resume);
    if (!source.ok()) return source.status();
    resume_ = *std::move(source);
  }
  checkpoint_writer_ = std::make_unique<CheckpointWriter>(options_.files, options_.checkpoint_dir, options_.rank);
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  if (absl::Status status = options_.files->MakeFolder(options_.checkpoint_dir); !status.ok()) return status;
  checkpoints_.emplace(options_.files, options_.checkpoint_dir);
  return absl::OkStatus();
}

v1::CheckpointPart Server::DescribePart() const {
  v1::CheckpointPart part;
  part.set_id(captured_.load());
  if (part.id() == 0) return part;
  part.set_stage(v1::CheckpointPart::STAGE_CAPTURED);
  const std::optional<CheckpointWriter::Outcome> outcome = checkpoint_writer_->outcome();
  if (!outcome.has_value() || outcome->id != part.id()) return part;
  if (!outcome->digest.ok()) {
    part.set_stage(v1::CheckpointPart::STAGE_FAILED);
    part.set_failure(std::string(outcome->digest.status().message()));
    return part;
  }
  part.set_stage(v1::CheckpointPart::STAGE_WRITTEN);
  part.set_bytes(outcome->digest->bytes);
  part.set_checksum(outcome->digest->checksum);
  return part;
}

absl::Status Server::Recover() {
  if (options_.state_dir.empty() || options_.with_standby) return absl::OkStatus();
  ShardStore::Options options;
  options.folder = options_.state_dir;
  options.shard = options_.rank;
  options.on_failure = options_.on_fatal;
  options.log = options_.log;
  absl::StatusOr<std::unique_ptr<ShardStore>> store = ShardStore::Open(std::move(options), options_.files, &shard_);
  if (!store.ok()) return store.status();
  store_ = *std::move(store);
  const absl::StatusOr<ShardStore::Recovered> recovered = store_->Recover();
  if (!recovered.ok()) return recovered.status();
  if (recovered->found) options_.on_recovered(*recovered);
  return absl::OkStatus();
}

absl::Status Server::Listen() {
  grpc::EnableDefaultHealthCheckService(true);
  if (options_.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const absl::StatusOr<uint32_t> room = MakeRoomForConnections(options_.max_connections);
  if (!room.ok()) return room.status();
  ServingPort::Options port;
  port.security = options_.security;
  port.certificate_refresh = options_.certificate_refresh;
  port.tokens = tokens_;
  port.max_connections = *room;
  port.max_streams = options_.max_streams;

  port.listen = options_.control_listen.empty() ? absl::StrCat(HostOf(options_.listen), ":0") : options_.control_listen;
  port.flag = "--control_listen";
  port.max_bytes = kControlBytes;
  port.threads = kControlThreads;
  if (coordinator_ != nullptr) {
    control_coordinator_service_ =
        std::make_unique<CoordinatorServiceAdapter>(coordinator_.get(), coordinator_access_.get());
  }
  auto control = ServingPort::Open(port, [this](grpc::ServerBuilder& builder) {
    builder.RegisterService(&shard_status_service_);
    builder.RegisterCallbackGenericService(&unknown_methods_);
    if (control_coordinator_service_ != nullptr) builder.RegisterService(control_coordinator_service_.get());
  });
  if (!control.ok()) return control.status();

  port.listen = options_.listen;
  port.flag = "--listen";
  port.max_bytes = options_.max_bytes_in_flight;
  port.threads = std::clamp(CoreCount() / 2, kMinDataThreads, kMaxDataThreads);
  auto data = ServingPort::Open(port, [this](grpc::ServerBuilder& builder) {
    builder.RegisterService(&parameter_service_);
    builder.RegisterCallbackGenericService(&data_plane_);
    builder.RegisterService(standby_service_.get());
    // Clients may know this port only.
    if (coordinator_service_ != nullptr) builder.RegisterService(coordinator_service_.get());
  });
  if (!data.ok()) return data.status();
  control_ = *std::move(control);
  data_ = *std::move(data);
  address_ = data_->address();
  control_address_ = control_->address();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> Server::OpenCoordinator() {
  if (!coordinates_) return OpenServer(options_.coordinator);
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

void Server::PauseSoon(const std::vector<v1::Member>& absent) {
  // The next heartbeat repeats the list, because a worker wrongly declared lost may push and is then waited for
  // again.
  if (pausing_.exchange(true)) return;
  const absl::Status taken = work_.Submit([this, absent] {
    const std::string job = shard_.job_name();
    for (const v1::Member& worker : absent) {
      // Pause is refused if a newer incarnation has pushed already; then no pause is needed.
      if (!job.empty()) shard_.Pause(job, worker.rank(), worker.incarnation()).IgnoreError();
    }
    pausing_ = false;
  });
  if (!taken.ok()) pausing_ = false;
}

CoordinatorMember::Events Server::MemberEvents() {
  CoordinatorMember::Events events;
  events.job = [this] { return shard_.job_name(); };
  events.on_job_failed = [this](absl::Status failure) { shard_.Close(std::move(failure)); };
  // Both wait for pushes under way, which may wait for a disk; heartbeats must not.
  events.on_absent = [this](const std::vector<v1::Member>& absent) { PauseSoon(absent); };
  events.on_capture = [this](uint64_t checkpoint, uint32_t servers) {
    // If the task is refused, the coordinator abandons the checkpoint.
    work_
        .Submit([this, checkpoint, servers] {
          checkpoint_writer_->Begin(checkpoint, servers, shard_.Capture([] {}));
          captured_ = checkpoint;
          HeartbeatNow();
        })
        .IgnoreError();
  };
  events.checkpoint_part = [this] { return DescribePart(); };
  events.on_part = [this](const v1::Member& member) { AssumeRole(member); };
  events.pair_news = [this]() -> ReplicationReport {
    if (!options_.with_standby) return {};
    return {standby_journal_->Report(), receiver_->lost()};
  };
  events.on_heard = [this](const ReplicationReport& news) {
    if (options_.with_standby) standby_journal_->OnHeartbeat(news.standby);
  };
  events.on_standby = [this](const v1::StandbyTarget& standby) {
    if (options_.with_standby) standby_journal_->Feed(standby);
  };
  events.on_displaced = [this](absl::Status reason) {
    if (!options_.with_standby) return options_.on_fatal(std::move(reason));
    serving_.Close();
    standby_journal_->Close(
        WithReason(v1::ERROR_REASON_NOT_SERVING,
                   absl::UnavailableError(absl::StrCat("another server holds the shard: ", reason.message()))));
    options_.on_displaced(std::move(reason));
  };
  events.on_fatal = options_.on_fatal;
  return events;
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
  if (absl::Status status = server->OpenCheckpoints(); !status.ok()) return status;
  if (absl::Status status = server->Recover(); !status.ok()) return status;
  if (absl::Status status = server->MakeCoordinator(); !status.ok()) return status;
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<grpc::Channel>> coordinator = server->OpenCoordinator();
  if (!coordinator.ok()) return coordinator.status();
  const Options& o = server->options_;
  CoordinatorMember::Options member;
  member.coordinator = server->coordinates_ ? server->address_ : o.coordinator;
  member.channel = *std::move(coordinator);
  member.rank = o.rank;
  member.with_standby = o.with_standby;
  member.servers = o.servers;
  member.address = o.advertise.empty() ? server->address_ : o.advertise;
  member.control_address = absl::StrCat(HostOf(member.address), PortOf(server->control_address_));
  member.patience = o.patience;
  member.gather_timeout = o.gather_timeout;
  auto joining = std::make_unique<CoordinatorMember>(std::move(member), server->MemberEvents());
  {
    absl::MutexLock lock(&server->member_mutex_);
    server->member_ = std::move(joining);
  }
  return server;
}

bool Server::job_finished() {
  if (coordinator_ != nullptr) return coordinator_->progress().state() == v1::JOB_STATE_FINISHED;
  absl::MutexLock lock(&member_mutex_);
  return member_ != nullptr && member_->job_state() == v1::JOB_STATE_FINISHED;
}

void Server::Drain(absl::Duration grace) {
  if (data_ == nullptr) return;
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
  shard_.Close(reason);
  if (standby_journal_ != nullptr) standby_journal_->Close(reason);
  data_plane_.regions().Close(reason);
  data_->Close(grace);
  control_->Close(deadline - absl::Now());
  data_.reset();
  control_.reset();
  declarations_.Shutdown();
  work_.Shutdown();
}

Server::~Server() { Drain(absl::Seconds(1)); }

}  // namespace ballast
