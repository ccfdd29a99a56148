// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator_host.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/concurrency/clock.h"

namespace ballast {

CoordinatorHost::CoordinatorHost(std::unique_ptr<CoordinatorStore> store, const Coordinator::Options& options,
                                 const TokenTable* tokens)
    : store_(std::move(store)),
      coordinator_(options, Clock::Real()),
      access_(tokens, [this] { return coordinator_.job_name(); }) {}

absl::StatusOr<std::unique_ptr<CoordinatorHost>> CoordinatorHost::Open(const ServerOptions& options,
                                                                       const TokenTable* tokens,
                                                                       CheckpointFolder* checkpoints,
                                                                       const CheckpointSource* resume) {
  std::unique_ptr<CoordinatorStore> store;
  if (!options.state_dir.empty()) {
    auto opened = CoordinatorStore::Open(options.files, options.state_dir + "/coordinator", Clock::Real());
    if (!opened.ok()) return opened.status();
    store = *std::move(opened);
  }
  absl::StatusOr<uint64_t> first_checkpoint = 1;
  if (checkpoints != nullptr) first_checkpoint = checkpoints->NextId();
  if (!first_checkpoint.ok()) return first_checkpoint.status();
  Coordinator::Options coordinator{.servers = options.servers,
                                   .workers = options.workers,
                                   .member_ttl = options.member_ttl,
                                   .with_standby = options.with_standby,
                                   .journal = store.get(),
                                   .checkpoints = checkpoints,
                                   .disk_thread = true,
                                   // This process sends its own heartbeats at least twice as often.
                                   .longest_silence = options.member_ttl / 5 * 2,
                                   .first_checkpoint = *first_checkpoint,
                                   .log = options.log};
  if (resume != nullptr) coordinator.resume = resume->manifest();
  std::unique_ptr<CoordinatorHost> host(new CoordinatorHost(std::move(store), coordinator, tokens));
  if (absl::Status status = host->Restore(options.state_dir); !status.ok()) return status;
  return host;
}

absl::Status CoordinatorHost::Restore(const std::string& state_dir) {
  if (store_ == nullptr || store_->recovered().empty()) return absl::OkStatus();
  internal::v1::CoordinatorState state;
  if (!state.ParseFromString(store_->recovered())) {
    return absl::DataLossError(absl::StrCat(state_dir, "/coordinator: the last record does not parse"));
  }
  return coordinator_.Restore(state);
}

}  // namespace ballast
