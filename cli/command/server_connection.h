// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/rpc/credentials.h"

namespace ballast {

// A source of a job's progress: a coordinator, or a fake in tests.
class ProgressSource {
 public:
  virtual ~ProgressSource() = default;
  // Blocks for at most `timeout`.
  virtual absl::StatusOr<v1::GetProgressResponse> GetProgress(absl::Duration timeout) = 0;
  // Reports that a member's process has ended, so that the job need not wait for a timeout to detect it.
  virtual absl::Status ReportEnd(const v1::Member& member, const std::string& how, absl::Duration timeout) = 0;
  // Starts a checkpoint, or returns the state of one; see CoordinatorService.SaveCheckpoint. The source names the job.
  virtual absl::StatusOr<v1::SaveCheckpointResponse> SaveCheckpoint(v1::SaveCheckpointRequest request,
                                                                    absl::Duration timeout) = 0;
};

// A connection to one running server; hides gRPC. Each error names the address and how long the call waited.
class ServerConnection : public ProgressSource {
 public:
  // Blocks for at most `timeout`.
  virtual absl::StatusOr<v1::GetStatusResponse> GetStatus(absl::Duration timeout) = 0;

  // Does not wait for the server. Starts threads, so fork first. If `patient`, a call waits for an unreachable server
  // until its timeout, and so finds one that is restarting. Each request names `job`; empty: the server's only job.
  static std::unique_ptr<ServerConnection> Open(const std::string& address, const Credentials& credentials,
                                                bool patient, const std::string& job);
};

}  // namespace ballast
