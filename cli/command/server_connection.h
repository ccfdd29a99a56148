// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ballast/v1/parameter_service.pb.h"
#include "cli/command/progress_source.h"
#include "common/rpc/credentials.h"

namespace ballast {

// Asks one running server how it is; gRPC stays behind it. Each error names the address and how long was waited.
class ServerConnection : public ProgressSource {
 public:
  // Blocks for `timeout` at most.
  virtual absl::StatusOr<v1::GetStatusResponse> GetStatus(absl::Duration timeout) = 0;

  // Does not wait for the server. Starts threads, so fork before. Where it is `patient` a call waits for a server that
  // is away until its time is over, and so finds one that has just been started again. Each request names `job`; empty:
  // the server's only job.
  static std::unique_ptr<ServerConnection> Open(const std::string& address, const Credentials& credentials,
                                                bool patient, const std::string& job);
};

}  // namespace ballast
