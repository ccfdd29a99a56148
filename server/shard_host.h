// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/tokens.h"
#include "common/storage/checkpoint_folder.h"
#include "server/durability/checkpoint_source.h"
#include "server/durability/shard_checkpoint.h"
#include "server/durability/shard_store.h"
#include "server/replication/shard_stream.h"
#include "server/replication/standby_journal.h"
#include "server/replication/standby_receiver.h"
#include "server/rpc/call_tracing.h"
#include "server/rpc/coordinator_member.h"
#include "server/rpc/serving_gate.h"
#include "server/rpc/shard_services.h"
#include "server/server_options.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// Owns a server's shard and everything that serves it and makes it outlive the process: the store or the standby
// journal, a standby's receiver, checkpoints, and the services with their threads. Does what the coordinator's
// responses ask of the shard. Deliberately knows neither ports nor connections. Thread safety: all methods may be
// called from any thread, Open once and first.
class ShardHost {
 public:
  // Opens a stream to the standby at an address.
  using OpenStandby = std::function<absl::StatusOr<std::unique_ptr<StandbyStream>>(const std::string& address)>;

  // `options` and `tokens` must outlive the host; null `tokens`: calls need no token. `heartbeat_now` sends a
  // heartbeat immediately, if this process is a member.
  ShardHost(const ServerOptions& options, const TokenTable* tokens, std::function<void()> heartbeat_now,
            OpenStandby open_standby);
  ShardHost(const ShardHost&) = delete;

  // Opens the checkpoint to resume from and the directory for new ones, then recovers the shard's state.
  absl::Status Open();

  // Returns the callbacks through which the membership drives the shard.
  CoordinatorMember::Events MemberEvents();

  // OK if this process serves its shard, follows its server as a standby, or is a standby of a job that has not begun,
  // when there is nothing to follow yet; otherwise UNAVAILABLE with the reason.
  absl::Status Ready() const;

  // Ends current and later waits with `reason`.
  void Close(const absl::Status& reason);

  ParameterShard& shard() { return shard_; }
  ShardServices& services() { return services_; }
  // The checkpoint to resume from, and the directory for new ones; null if the options name none. Set by Open.
  const CheckpointSource* resume() const { return resume_.has_value() ? &*resume_ : nullptr; }
  CheckpointFolder* checkpoints() { return checkpoints_.has_value() ? &*checkpoints_ : nullptr; }

 private:
  absl::Status OpenCheckpoints();
  absl::Status Recover();
  v1::CheckpointPart DescribePart() const;
  // Makes the shard stop waiting for these workers, on another thread.
  void PauseSoon(const std::vector<v1::Member>& absent);
  void AssumeRole(const v1::Member& member);
  ParameterShard::Options ShardOptions();
  absl::StatusOr<ShardJournal*> OpenJournal(const JobConfig& job);

  const ServerOptions& options_;
  const std::function<void()> heartbeat_now_;
  ServingGate serving_;
  ParameterShard shard_;
  std::optional<CheckpointSource> resume_;
  std::optional<CheckpointFolder> checkpoints_;
  std::unique_ptr<CheckpointWriter> checkpoint_writer_;
  // Id of the last checkpoint for which this shard was captured.
  std::atomic<uint64_t> captured_{0};
  // True while a task of PauseSoon is queued or runs.
  std::atomic<bool> pausing_{false};
  // True after a heartbeat whose response says that the job has not begun.
  std::atomic<bool> gathering_{false};
  // Null without state_dir. Declared after the shard because it takes snapshots of it.
  std::unique_ptr<ShardStore> store_;
  // Null without with_standby.
  std::unique_ptr<StandbyJournal> standby_journal_;
  CallTracing tracing_;
  // Refuses all streams unless this process is a standby.
  StandbyReceiver receiver_;
  // Declared after everything that the tasks of its executors use.
  ShardServices services_;
};

}  // namespace ballast
