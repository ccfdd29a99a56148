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
  JobOptions job{.servers = options.servers,
                 .workers = options.workers,
                 .member_ttl = options.member_ttl,
                 .with_standby = options.with_standby,
                 // This process sends its own heartbeats at least twice as often.
                 .longest_silence = options.member_ttl / 5 * 2};
  if (checkpoints != nullptr) {
    const absl::StatusOr<uint64_t> first = checkpoints->NextId();
    if (!first.ok()) return first.status();
    job.first_checkpoint = *first;
  }
  if (resume != nullptr) job.resume = resume->manifest();
  const Coordinator::Options coordinator{.job = std::move(job),
                                         .journal = store.get(),
                                         .checkpoints = checkpoints,
                                         .disk_thread = true,
                                         .log = options.log};
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
