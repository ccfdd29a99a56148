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

// One server process: a shard behind gRPC, with the coordinator beside it in rank 0, and its part in the job.
// Thread safety: all methods may be called from any thread.
class Server {
 public:
  struct Options {
    // host:port; port 0 takes a free one.
    std::string listen = "127.0.0.1:0";
    // host:port of the calls whose time does not depend on data: the coordinator's, GetStatus, health. Empty: a free
    // port of the same host.
    std::string control_listen;
    // What others reach it by; empty: the address it listens on. The control port is reached by the same host.
    std::string advertise;
    uint32_t rank = 0;
    // Servers come in pairs, for jobs of durability STANDBY: two processes of each rank, or of the ranks up to twice
    // `servers`. The one of rank 0 that needs no coordinator's address, or is given its own, runs the coordinator.
    bool with_standby = false;
    // Of the job; what counts is what rank 0 says.
    uint32_t servers = 1;
    uint32_t workers = 1;
    // Required where another process runs the coordinator.
    std::string coordinator;
    // Of the listen address and of calls to server 0; tokens are shown there, too.
    SecurityOptions security;
    // For a file that replaces a certificate or key to count; at least 1 s.
    absl::Duration certificate_refresh = kCertificateRefresh;
    bool reflection = false;
    // Of requests and answers held at once; more is refused with RESOURCE_EXHAUSTED.
    uint64_t max_bytes_in_flight = uint64_t{256} << 20;
    uint64_t max_state_bytes = uint64_t{1} << 34;
    // Connections at once, others are closed unread; 0: as MakeRoomForConnections.
    uint32_t max_connections = 0;
    // Calls of one connection at once; its others wait at the client.
    uint32_t max_streams = 64;
    // Where it keeps what a job's durability asks for; of this server alone. Empty: nowhere.
    std::string state_dir;
    // Where checkpoints of the job are kept: one folder, which all its servers see. Empty: nowhere.
    std::string checkpoint_dir;
    // The manifest of the checkpoint that the job resumes from; empty: it begins anew. What is in state_dir is newer
    // and counts instead.
    std::string resume;
    // Where all of that is written; outlives the server.
    FileSystem* files = PosixFileSystem();
    absl::Duration member_ttl = absl::Seconds(3);
    // How long the coordinator may be silent.
    absl::Duration patience = absl::Seconds(60);
    // For all servers and workers to have joined, else it cannot go on (DEADLINE_EXCEEDED); 0: no limit.
    absl::Duration gather_timeout = absl::ZeroDuration();
    // Takes a line that says what happened; may be called from any thread, and must not wait.
    std::function<void(const std::string&)> log = [](const std::string&) {};
    // Called before it listens, with what was in the folder, where anything was.
    std::function<void(const ShardStore::Recovered&)> on_recovered = [](const ShardStore::Recovered&) {};
    // Called with what the process is once it has joined, and when that changes: one of a pair.
    std::function<void(const v1::Member&)> on_part = [](const v1::Member&) {};
    // Called when the process was given up or replaced, or as a standby does not follow any more: it holds nothing that
    // counts, and may start anew. Not called again.
    std::function<void(absl::Status)> on_displaced = [](absl::Status) {};
    // Called when the server cannot go on; not called again.
    std::function<void(absl::Status)> on_fatal = [](absl::Status) {};
  };

  // INVALID_ARGUMENT for a bad address or rank and for security that does not fit (as CheckServing, CheckTlsFiles and
  // TokenTable::Load), UNAVAILABLE for a port in use, FAILED_PRECONDITION for more connections than there may be files.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Options options);
  ~Server();
  Server(const Server&) = delete;

  // host:port.
  const std::string& address() const { return address_; }
  const std::string& control_address() const { return control_address_; }

  // Ends waits, refuses new work, lets calls under way end within `grace`, then stops. Idempotent.
  void Drain(absl::Duration grace);

  // Every example of every epoch was reported done, as far as this server has heard.
  bool job_finished();

  ParameterShard& shard() { return shard_; }

 private:
  // Null tokens: none are wanted.
  Server(Options options, std::shared_ptr<const TokenTable> tokens);
  static absl::StatusOr<std::shared_ptr<const TokenTable>> LoadTokens(const Options& options);
  ParameterShard::Options ShardOptions();
  absl::Status Recover();
  // As it was, where the folder knows of one.
  absl::Status MakeCoordinator();
  absl::Status OpenCheckpoints();
  CoordinatorMember::Events MemberEvents();
  v1::CheckpointPart DescribePart() const;
  // Has the shard wait for these workers no more.
  void PauseSoon(const std::vector<v1::Member>& absent);
  // Opens both ports.
  absl::Status Listen();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenCoordinator();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenServer(const std::string& address) const;
  // Says to the coordinator what is new.
  void HeartbeatNow();
  absl::StatusOr<ShardJournal*> OpenJournal(const JobConfig& job);
  // Serves the shard, or follows the server that does.
  void AssumeRole(const v1::Member& member);

  // The rank is the shard's.
  const Options options_;
  // Shared with gRPC, which asks for it at the door.
  const std::shared_ptr<const TokenTable> tokens_;
  std::string address_;
  std::string control_address_;
  // Whether the coordinator is here.
  const bool coordinates_;
  ServingGate serving_;
  ParameterShard shard_;
  const AccessGuard shard_access_;
  // What the job resumes from, where it does; checkpoints that are taken, where there is a folder for them.
  std::optional<CheckpointSource> resume_;
  std::optional<CheckpointFolder> checkpoints_;
  std::unique_ptr<CheckpointWriter> checkpoint_writer_;
  // The checkpoint that this shard was captured for last.
  std::atomic<uint64_t> captured_{0};
  // The shard is told of workers that nobody need wait for.
  std::atomic<bool> pausing_{false};
  // Null without a folder. After the shard, which it takes snapshots of.
  std::unique_ptr<ShardStore> store_;
  // Of one of a pair; null in others.
  std::unique_ptr<StandbyJournal> standby_journal_;
  // Refuses all streams where this is no standby.
  std::unique_ptr<StandbyReceiver> receiver_;
  std::unique_ptr<StandbyServiceAdapter> standby_service_;
  // Do what depends on the amount of data, or on a disk. After all that they use.
  Executor declarations_;
  Executor work_;
  DataPlane data_plane_;
  ParameterServiceAdapter parameter_service_;
  // In rank 0. The store is null without a folder.
  std::unique_ptr<CoordinatorStore> coordinator_store_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<const AccessGuard> coordinator_access_;
  std::unique_ptr<CoordinatorServiceAdapter> coordinator_service_;
  // At the control port.
  ShardStatusService shard_status_service_{&parameter_service_};
  // Of the control port.
  UnknownMethods unknown_methods_;
  std::unique_ptr<CoordinatorServiceAdapter> control_coordinator_service_;
  std::unique_ptr<ServingPort> control_;
  std::unique_ptr<ServingPort> data_;
  absl::Mutex member_mutex_;
  std::unique_ptr<CoordinatorMember> member_ ABSL_GUARDED_BY(member_mutex_);
};

}  // namespace ballast
