// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/concurrency/clock.h"
#include "common/concurrency/executor.h"
#include "common/rpc/credentials.h"
#include "common/security/security_options.h"
#include "common/security/tokens.h"
#include "common/storage/checkpoint_folder.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/coordinator_store.h"
#include "server/durability/checkpoint_source.h"
#include "server/durability/checkpoint_writer.h"
#include "server/durability/shard_store.h"
#include "server/replication/standby_journal.h"
#include "server/replication/standby_receiver.h"
#include "server/rpc/coordinator_member.h"
#include "server/rpc/coordinator_service.h"
#include "server/rpc/parameter_service.h"
#include "server/rpc/port/access_guard.h"
#include "server/rpc/port/connection_gate.h"
#include "server/rpc/port/serving_port.h"
#include "server/rpc/serving_gate.h"
#include "server/rpc/standby_service.h"
#include "server/rpc/unary_reply.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// A server process: owns one shard behind gRPC, in rank 0 also the coordinator, and this process's membership in the
// job. Thread safety: all methods may be called from any thread.
class Server {
 public:
  struct Options {
    // HOST:PORT; port 0 picks a free port.
    std::string listen = "127.0.0.1:0";
    // HOST:PORT for control calls, whose time does not depend on data: the coordinator's, GetStatus, health. Empty: a
    // free port on the same host.
    std::string control_listen;
    // HOST:PORT at which others reach this server; its control port is reached on the same host. Empty: `listen`.
    std::string advertise;
    uint32_t rank = 0;
    // Each server has a standby, for jobs with durability STANDBY: two processes per rank, the second one under the
    // same rank or under that rank plus `servers`. The process of rank 0 whose `coordinator` is empty or its own
    // address runs the coordinator.
    bool with_standby = false;
    // Sizes of the job; the values of rank 0 apply.
    uint32_t servers = 1;
    uint32_t workers = 1;
    // Required if another process runs the coordinator.
    std::string coordinator;
    // Secures the listen address and the calls to server 0, which also present the token.
    SecurityOptions security;
    // Interval after which a replaced certificate or key file is in use; at least 1 s.
    absl::Duration certificate_refresh = kCertificateRefresh;
    bool reflection = false;
    // Limit on the requests and responses held at once; calls beyond it are refused with RESOURCE_EXHAUSTED.
    uint64_t max_bytes_in_flight = uint64_t{256} << 20;
    uint64_t max_state_bytes = uint64_t{1} << 34;
    // Limit on open connections; further ones are closed unread. 0: the default of MakeRoomForConnections.
    uint32_t max_connections = 0;
    // Limit on concurrent calls per connection; further calls wait at the client.
    uint32_t max_streams = 64;
    // Directory for the state that the job's durability requires, used by this server only. Empty: no state is kept.
    std::string state_dir;
    // Directory for checkpoints, shared by all servers of the job. Empty: no checkpoints are taken.
    std::string checkpoint_dir;
    // Path of the manifest of the checkpoint from which the job resumes; empty: the job starts from scratch. State in
    // state_dir is newer and takes precedence.
    std::string resume;
    // Holds all of these directories; outlives the server.
    FileSystem* files = PosixFileSystem();
    absl::Duration member_ttl = absl::Seconds(3);
    // Time after which an unreachable coordinator counts as lost.
    absl::Duration patience = absl::Seconds(60);
    // Time within which all servers and workers must join; otherwise on_fatal gets DEADLINE_EXCEEDED. 0: no limit.
    absl::Duration gather_timeout = absl::ZeroDuration();
    // Gets log lines. Called from any thread; must not block.
    std::function<void(const std::string&)> log = [](const std::string&) {};
    // Called before the server listens, if state was recovered.
    std::function<void(const ShardStore::Recovered&)> on_recovered = [](const ShardStore::Recovered&) {};
    // Only with_standby: called with this process's role once it has joined, and whenever the role changes.
    std::function<void(const v1::Member&)> on_part = [](const v1::Member&) {};
    // Called once if this process was lost or replaced, or is a standby that no longer follows its server. Its state
    // is obsolete, and it may start again without state.
    std::function<void(absl::Status)> on_displaced = [](absl::Status) {};
    // Called once if the server cannot continue.
    std::function<void(absl::Status)> on_fatal = [](absl::Status) {};
  };

  // INVALID_ARGUMENT for a bad address or rank, or for security options that CheckServing, CheckTlsFiles or
  // TokenTable::Load rejects; UNAVAILABLE for a port in use; FAILED_PRECONDITION for more connections than the limit
  // on open files allows.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Options options);
  ~Server();
  Server(const Server&) = delete;

  const std::string& address() const { return address_; }
  const std::string& control_address() const { return control_address_; }

  // Ends waits, refuses new work, lets calls under way finish within `grace`, then stops. Idempotent.
  void Drain(absl::Duration grace);

  // True if every example of every epoch was reported done, as far as this server knows.
  bool job_finished();

  ParameterShard& shard() { return shard_; }

 private:
  // Null `tokens`: calls need no token.
  Server(Options options, std::shared_ptr<const TokenTable> tokens);
  static absl::StatusOr<std::shared_ptr<const TokenTable>> LoadTokens(const Options& options);
  ParameterShard::Options ShardOptions();
  absl::Status Recover();
  // Restores the coordinator's saved state, if there is one.
  absl::Status MakeCoordinator();
  absl::Status OpenCheckpoints();
  CoordinatorMember::Events MemberEvents();
  v1::CheckpointPart DescribePart() const;
  // Makes the shard stop waiting for these workers, on another thread.
  void PauseSoon(const std::vector<v1::Member>& absent);
  absl::Status Listen();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenCoordinator();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenServer(const std::string& address) const;
  void HeartbeatNow();
  absl::StatusOr<ShardJournal*> OpenJournal(const JobConfig& job);
  void AssumeRole(const v1::Member& member);

  // `rank` is the shard's rank here, below `servers`.
  const Options options_;
  // Shared with gRPC, which checks tokens before it reads a call's messages.
  const std::shared_ptr<const TokenTable> tokens_;
  std::string address_;
  std::string control_address_;
  const bool coordinates_;
  ServingGate serving_;
  ParameterShard shard_;
  const AccessGuard shard_access_;
  // The checkpoint to resume from, and the directory for new ones; each empty if the options name none.
  std::optional<CheckpointSource> resume_;
  std::optional<CheckpointFolder> checkpoints_;
  std::unique_ptr<CheckpointWriter> checkpoint_writer_;
  // Id of the last checkpoint for which this shard was captured.
  std::atomic<uint64_t> captured_{0};
  // True while a task of PauseSoon is queued or runs.
  std::atomic<bool> pausing_{false};
  // Null without state_dir. Declared after the shard because it takes snapshots of it.
  std::unique_ptr<ShardStore> store_;
  // Null without with_standby.
  std::unique_ptr<StandbyJournal> standby_journal_;
  // Refuses all streams unless this process is a standby.
  std::unique_ptr<StandbyReceiver> receiver_;
  std::unique_ptr<StandbyServiceAdapter> standby_service_;
  // Executors for work that depends on the amount of data or on a disk. Declared after everything that their tasks
  // use.
  Executor declarations_;
  Executor work_;
  DataPlane data_plane_;
  ParameterServiceAdapter parameter_service_;
  // Null unless this process runs the coordinator; the store is also null without state_dir.
  std::unique_ptr<CoordinatorStore> coordinator_store_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<const AccessGuard> coordinator_access_;
  std::unique_ptr<CoordinatorServiceAdapter> coordinator_service_;
  // Services of the control port.
  ShardStatusService shard_status_service_{&parameter_service_};
  UnknownMethods unknown_methods_;
  std::unique_ptr<CoordinatorServiceAdapter> control_coordinator_service_;
  std::unique_ptr<ServingPort> control_;
  std::unique_ptr<ServingPort> data_;
  absl::Mutex member_mutex_;
  std::unique_ptr<CoordinatorMember> member_ ABSL_GUARDED_BY(member_mutex_);
};

}  // namespace ballast
