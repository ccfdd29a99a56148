// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/rpc/credentials.h"
#include "common/security/security_options.h"
#include "common/storage/file_system.h"
#include "common/trace/call_timeline.h"
#include "server/durability/shard_store.h"

namespace ballast {

// Options of a server process. Size: one field for each flag of ballast_server and for each event.
struct ServerOptions {
  // HOST:PORT; port 0 picks a free port.
  std::string listen = "127.0.0.1:0";
  // HOST:PORT for control calls, whose time does not depend on data: the coordinator's, GetStatus, health. Empty: a
  // free port on the same host.
  std::string control_listen;
  // HOST:PORT of the HTTP pages for probes and scrapers (server/pages); port 0 picks a free port. Empty: none.
  std::string http_listen;
  // HOST:PORT at which others reach this server; its control port is reached on the same host. Port 0: the one of
  // `listen`. Empty: `listen`.
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
  // Limit on open connections; further ones are closed unread. 0: the default of MakeRoomForConnections for `workers`.
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
  absl::Duration coordinator_timeout = absl::Seconds(60);
  // Time within which all servers and workers must join; otherwise on_fatal gets DEADLINE_EXCEEDED. 0: no limit.
  absl::Duration gather_timeout = absl::ZeroDuration();
  // Gets log lines. Called from any thread; must not block.
  std::function<void(const std::string&)> log = [](const std::string&) {};
  // Records the calls that clients trace; outlives the server. Null: none are recorded.
  CallTimeline* calls = nullptr;
  // Called before the server listens, if state was recovered.
  std::function<void(const ShardStore::Recovered&)> on_recovered = [](const ShardStore::Recovered&) {};
  // Only with_standby: called with this process's role once it has joined, and whenever the role changes.
  std::function<void(const v1::Member&)> on_part = [](const v1::Member&) {};
  // Called once if the job has failed, with the JobFailedError. The server still answers. Must not block.
  std::function<void(const absl::Status&)> on_job_failed = [](const absl::Status&) {};
  // Called once if this process was lost or replaced, or is a standby that no longer follows its server. Its state
  // is obsolete, and it may start again without state.
  std::function<void(absl::Status)> on_displaced = [](absl::Status) {};
  // Called once if the server cannot continue.
  std::function<void(absl::Status)> on_fatal = [](absl::Status) {};
};

}  // namespace ballast
