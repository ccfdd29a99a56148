// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/http/status_server.h"
#include "common/security/tokens.h"
#include "server/coordinator_host.h"
#include "server/rpc/coordinator_member.h"
#include "server/rpc/port/serving_port.h"
#include "server/rpc/unary_reply.h"
#include "server/server_options.h"
#include "server/shard/parameter_shard.h"
#include "server/shard_host.h"

namespace ballast {

// A server process: owns its ports and its membership in the job, the host of its shard, and in rank 0 also the host
// of the coordinator. Thread safety: all methods may be called from any thread.
class Server {
 public:
  using Options = ServerOptions;

  // INVALID_ARGUMENT for a bad address or rank, or for security options that CheckServing, CheckTlsFiles or
  // TokenTable::Load rejects; UNAVAILABLE for a port in use; FAILED_PRECONDITION for more connections than the limit
  // on open files allows.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Options options);
  ~Server();
  Server(const Server&) = delete;

  const std::string& address() const { return address_; }
  const std::string& control_address() const { return control_address_; }
  // HOST:PORT of the HTTP pages; empty if there are none.
  std::string http_address() const { return pages_ == nullptr ? "" : pages_->address(); }

  // See CoordinatorMember::SaveCheckpoint. Call it before Drain.
  std::string SaveCheckpoint(absl::Duration timeout);

  // Ends waits, refuses new work, lets calls under way finish within `grace`, then stops. Idempotent.
  void Drain(absl::Duration grace);

  // True if every example of every epoch was reported done, as far as this server knows.
  bool job_finished();

  ParameterShard& shard() { return shard_host_.shard(); }

 private:
  enum class Phase { kStarting, kServing, kEnding };

  // Null `tokens`: calls need no token.
  Server(Options options, std::shared_ptr<const TokenTable> tokens);
  static absl::StatusOr<std::shared_ptr<const TokenTable>> LoadTokens(const Options& options);
  absl::Status ServePages();
  absl::Status Ready() const;
  absl::Status Listen();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenCoordinator();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenServer(const std::string& address) const;
  void HeartbeatNow();

  // `rank` is the shard's rank here, below `servers`.
  const Options options_;
  // Shared with gRPC, which checks tokens before it reads a call's messages.
  const std::shared_ptr<const TokenTable> tokens_;
  std::string address_;
  std::string control_address_;
  // Before the shard host, whose threads ask for heartbeats until they are joined.
  absl::Mutex member_mutex_;
  std::unique_ptr<CoordinatorMember> member_ ABSL_GUARDED_BY(member_mutex_);
  ShardHost shard_host_;
  // Null unless this process runs the coordinator. Set before the ports listen.
  std::unique_ptr<CoordinatorHost> coordinator_host_;
  UnknownMethods unknown_methods_;
  std::unique_ptr<ServingPort> control_;
  std::unique_ptr<ServingPort> data_;
  // Null without http_listen. The pages are there before and after the ports, while the shard is recovered and while
  // the server ends.
  std::atomic<Phase> phase_{Phase::kStarting};
  std::unique_ptr<StatusServer> pages_;
};

}  // namespace ballast
