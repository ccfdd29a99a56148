// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/tokens.h"
#include "common/storage/checkpoint_folder.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/coordinator_store.h"
#include "server/durability/checkpoint_source.h"
#include "server/rpc/coordinator_service.h"
#include "server/rpc/port/access_guard.h"
#include "server/server_options.h"

namespace ballast {

// Owns the coordinator in the process that runs it: its store, if it keeps state, and its services. Deliberately
// knows neither ports nor the process's own shard. Thread safety: all methods may be called from any thread.
class CoordinatorHost {
 public:
  // Restores the saved state, if there is one; DATA_LOSS if it is damaged. Null `tokens`: calls need no token; null
  // `checkpoints`: none are taken; null `resume`: the job starts from scratch. The first three must outlive the host.
  static absl::StatusOr<std::unique_ptr<CoordinatorHost>> Open(const ServerOptions& options, const TokenTable* tokens,
                                                               CheckpointFolder* checkpoints,
                                                               const CheckpointSource* resume);
  CoordinatorHost(const CoordinatorHost&) = delete;

  Coordinator& coordinator() { return coordinator_; }
  // The service, once for each port.
  CoordinatorServiceAdapter& data_service() { return data_service_; }
  CoordinatorServiceAdapter& control_service() { return control_service_; }

 private:
  CoordinatorHost(std::unique_ptr<CoordinatorStore> store, const Coordinator::Options& options,
                  const TokenTable* tokens);
  absl::Status Restore(const std::string& state_dir);

  // Null without state_dir.
  const std::unique_ptr<CoordinatorStore> store_;
  Coordinator coordinator_;
  const AccessGuard access_;
  CoordinatorServiceAdapter data_service_{&coordinator_, &access_};
  CoordinatorServiceAdapter control_service_{&coordinator_, &access_};
};

}  // namespace ballast
