// SPDX-License-Identifier: Apache-2.0
#include "worker/serve/model_follower.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/coordinator_link.h"
#include "common/concurrency/named_thread.h"

namespace ballast {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(200);
// Limits on one attempt to read the dense tensors, and on all attempts of a read: the error shows soon after. A new
// read follows.
constexpr absl::Duration kReadTimeout = absl::Seconds(5);
constexpr absl::Duration kReadRetry = absl::Seconds(1);
// Limit on one attempt to connect again.
constexpr absl::Duration kReconnectTimeout = absl::Seconds(5);

absl::Status InContext(const absl::Status& status, absl::string_view context) {
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

// Returns the tables of the model in its order.
absl::StatusOr<std::vector<v1::TableSpec>> TablesOf(const ModelDescription& description, const ShardMap& map) {
  std::vector<v1::TableSpec> tables;
  for (const v1::EmbeddingTable& table : description.model.tables()) {
    const auto found =
        absl::c_find_if(map.tables(), [&](const PlacedTable& placed) { return placed.spec.name() == table.name(); });
    if (found == map.tables().end()) {
      return absl::NotFoundError(
          absl::StrCat("the model has table \"", table.name(), "\", which the servers lack, want a model of this job"));
    }
    tables.push_back(found->spec);
  }
  return tables;
}

}  // namespace

absl::StatusOr<std::vector<v1::TableSpec>> ModelFollower::AwaitTables(const ModelDescription& description,
                                                                      const Options& options) {
  const std::string context = absl::StrCat("cannot follow the job at ", options.coordinator);
  const absl::Time deadline = absl::Now() + options.connect_timeout;
  auto link =
      CoordinatorLink::Connect(options.coordinator, options.connect_timeout, options.credentials, description.job);
  if (!link.ok()) return InContext(link.status(), context);
  while (true) {
    const absl::StatusOr<ShardMap> map = (*link)->GetShardMap();
    if (!map.ok()) return InContext(map.status(), context);
    // Tensors and tables are declared one after the other.
    if (!map->tensors().empty() || !map->tables().empty()) {
      absl::StatusOr<std::vector<v1::TableSpec>> tables = TablesOf(description, *map);
      if (tables.ok() || absl::Now() > deadline) return tables;
    } else if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(context, ": its workers have declared no tensors within ",
                                                      absl::FormatDuration(options.connect_timeout)));
    }
    absl::SleepFor(kRetry);
  }
}

absl::StatusOr<std::unique_ptr<ModelFollower>> ModelFollower::Start(ServedModel* model, const Options& options) {
  std::unique_ptr<ModelFollower> follower(new ModelFollower(model, options));
  for (const Parameter& parameter : model->parameters()) follower->values_.emplace_back(parameter.elements);
  absl::Status status = follower->Connect(options.connect_timeout);
  if (status.ok()) status = follower->Read();
  if (status.ok()) status = follower->WatchTables(follower->client_->shard_map());
  if (!status.ok()) return InContext(status, absl::StrCat("cannot follow the job at ", options.coordinator));
  follower->thread_ = NamedThread("model follower", [owned = follower.get()] { owned->Run(); });
  return follower;
}

ModelFollower::~ModelFollower() {
  std::shared_ptr<Client> client;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    client = client_;
  }
  watcher_.reset();
  // Ends the thread's read.
  if (client != nullptr) client->Shutdown("the follower ends");
  if (thread_.joinable()) thread_.join();
  if (client != nullptr) client->WaitUntilIdle();
}

absl::Status ModelFollower::Connect(absl::Duration timeout) {
  ClientOptions options;
  options.coordinator = options_.coordinator;
  options.credentials = options_.credentials;
  options.job = model_->description().job;
  // A reader may not ask for shared memory.
  options.shared_memory = false;
  options.connect_timeout = timeout;
  options.rpc_timeout = kReadTimeout;
  options.retry_timeout = kReadRetry;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(std::move(options));
  if (!client.ok()) return client.status();
  absl::StatusOr<std::vector<uint32_t>> ids = FindTensors((*client)->shard_map());
  if (!ids.ok()) return ids.status();
  ids_ = *std::move(ids);
  // Shared with the destructor, which may end the client while it is replaced.
  std::shared_ptr<Client> connected = *std::move(client);
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return absl::CancelledError("the follower ends");
    client_.swap(connected);
  }
  // The client before waits for its calls as it ends here.
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> ModelFollower::FindTensors(const ShardMap& map) const {
  std::vector<uint32_t> ids;
  for (const Parameter& parameter : model_->parameters()) {
    const auto found = absl::c_find_if(
        map.tensors(), [&](const PlacedTensor& tensor) { return tensor.spec.name() == parameter.name; });
    if (found == map.tensors().end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has tensor \"", parameter.name,
                       "\", which its servers lack, want a model without frozen layers, of this job"));
    }
    if (!std::equal(found->spec.shape().begin(), found->spec.shape().end(), parameter.shape.begin(),
                    parameter.shape.end())) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", parameter.name, "\": got shape [", absl::StrJoin(found->spec.shape(), ", "),
                       "] at the servers, want [", absl::StrJoin(parameter.shape, ", "), "]"));
    }
    ids.push_back(found->spec.id());
  }
  return ids;
}

absl::Status ModelFollower::WatchTables(const ShardMap& map) {
  RowWatcherOptions watch;
  std::vector<RowCopy*> copies;
  for (const LoadedTable& loaded : model_->tables()) {
    RowCopy* const copy = loaded.rows.get();
    const PlacedTable* const table = map.FindTable(copy->table_id());
    if (table == nullptr || table->spec.dim() != copy->dim()) {
      return absl::InvalidArgumentError(absl::StrCat("the model has a table with id ", copy->table_id(), " and dim ",
                                                     copy->dim(), ", which its servers lack"));
    }
    watch.tables.push_back(table->spec);
    copies.push_back(copy);
  }
  if (!copies.empty()) {
    watch.coordinator = options_.coordinator;
    watch.credentials = options_.credentials;
    watch.job = model_->description().job;
    watch.retry_timeout = absl::InfiniteDuration();
    watch.on_update = [copies](const RangeUpdate& update) {
      const auto copy = absl::c_find_if(copies, [&](RowCopy* one) { return one->table_id() == update.table_id; });
      if (copy != copies.end()) (*copy)->Apply(update);
    };
    absl::StatusOr<std::unique_ptr<RowWatcher>> watcher = RowWatcher::Start(std::move(watch));
    if (!watcher.ok()) return watcher.status();
    watcher_ = *std::move(watcher);
    const absl::Status status = watcher_->AwaitComplete(options_.connect_timeout);
    if (!status.ok()) return status;
  }
  model_->SetRowsComplete();
  return absl::OkStatus();
}

absl::Status ModelFollower::Read() {
  std::vector<TensorValues> tensors;
  for (size_t i = 0; i < ids_.size(); ++i) {
    tensors.push_back({.tensor_id = ids_[i], .values = absl::MakeSpan(values_[i])});
  }
  // No newer than the answer, because its values may be read at any time of the call.
  const absl::Time begin = absl::Now();
  if (!tensors.empty()) {
    const absl::StatusOr<PullResult> pulled = client_->Pull(/*step=*/0, tensors).Get();
    if (!pulled.ok()) return pulled.status();
  }
  return model_->SetParameters(values_, begin);
}

void ModelFollower::Run() {
  const auto must_stop = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&must_stop), options_.refresh)) return;
    }
    absl::Status status = Read();
    if (!status.ok()) {
      SetStatus(status);
      // Otherwise the error of the read stays, which says more than that of a server that is not there.
      if (Connect(kReconnectTimeout).ok()) status = Read();
    }
    if (status.ok() && watcher_ != nullptr) status = watcher_->condition();
    SetStatus(status);
  }
}

void ModelFollower::SetStatus(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  status_ = status;
}

absl::Status ModelFollower::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

RowWatcher::Counts ModelFollower::row_counts() const {
  return watcher_ == nullptr ? RowWatcher::Counts() : watcher_->counts();
}

}  // namespace ballast
