// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/coordinator_store.h"

#include <algorithm>
#include <utility>

#include "common/concurrency/named_thread.h"
#include "common/storage/coordinator_log.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<CoordinatorStore>> CoordinatorStore::Open(FileSystem* files, std::string folder,
                                                                         const Clock* clock) {
  if (absl::Status status = files->MakeFolder(folder); !status.ok()) return status;
  std::unique_ptr<CoordinatorStore> store(new CoordinatorStore(files, std::move(folder), clock));
  if (absl::Status status = store->Recover(); !status.ok()) return status;
  store->thread_ = NamedThread("job state", [store = store.get()] { store->SettleUntilStopped(); });
  return store;
}

CoordinatorStore::~CoordinatorStore() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status CoordinatorStore::Recover() {
  absl::StatusOr<CoordinatorStates> states = ReadCoordinatorLogs(*files_, folder_);
  if (!states.ok()) return states.status();
  recovered_ = std::move(states->last);
  absl::MutexLock lock(&mutex_);
  next_ = states->next;
  return absl::OkStatus();
}

absl::Status CoordinatorStore::SaveInNewLogLocked(absl::string_view state) {
  const absl::StatusOr<std::vector<uint64_t>> before = ListCoordinatorLogs(*files_, folder_);
  if (!before.ok()) return before.status();
  const std::string path = CoordinatorLogPath(folder_, next_);
  absl::StatusOr<std::unique_ptr<RecordWriter>> log = RecordWriter::Create(files_, path, next_);
  absl::Status status = log.status();
  if (status.ok()) status = (*log)->Append({state}, synced_);
  // The older logs must stay until this state is synced.
  if (status.ok()) status = (*log)->Sync();
  if (!status.ok()) {
    // The name is used again, because recovery takes a directory without its first log as one that has held a state.
    if (!files_->Remove(path).ok()) ++next_;
    return status;
  }
  log_ = *std::move(log);
  next_ = log_->next();
  last_ = synced_ = next_ - 1;
  synced_at_ = clock_->Now();
  for (uint64_t first : *before) {
    // A log that remains is older, and the next new log removes it.
    files_->Remove(CoordinatorLogPath(folder_, first)).IgnoreError();
  }
  MarkLocked();
  return absl::OkStatus();
}

void CoordinatorStore::MarkLocked() {
  const absl::Status status = log_->Append({}, synced_);
  next_ = log_->next();
  // The mark is optional, but an incomplete one must not stay.
  if (!status.ok() && !absl::IsResourceExhausted(status)) AbandonLogLocked();
}

absl::Status CoordinatorStore::Save(absl::string_view state, bool sync) {
  absl::MutexLock lock(&mutex_);
  if (log_ == nullptr || log_->size() >= kLogBytes) return SaveInNewLogLocked(state);
  const absl::Status status = log_->Append({state}, synced_);
  next_ = log_->next();
  if (status.ok()) {
    last_ = next_ - 1;
    return sync ? SyncLocked() : status;
  }
  // Only an append that fails because the disk is full leaves the file unchanged.
  if (!absl::IsResourceExhausted(status)) AbandonLogLocked();
  return status;
}

void CoordinatorStore::Settle() {
  absl::MutexLock lock(&mutex_);
  SettleLocked();
}

// An idle coordinator saves nothing, so nothing needs a sync then.
void CoordinatorStore::SettleUntilStopped() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(this, &CoordinatorStore::DueLocked));
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kSyncInterval)) return;
    SettleLocked();
  }
}

void CoordinatorStore::SettleLocked() {
  const bool due = UnsyncedLocked() && clock_->Now() - synced_at_ >= kSyncInterval;
  // If that fails, the next state begins a new log and syncs it.
  if (due) SyncLocked().IgnoreError();
}

absl::Status CoordinatorStore::SyncLocked() {
  if (absl::Status status = log_->Sync(); !status.ok()) {
    // Sync may also find the disk full; the kernel may then have dropped unwritten data.
    AbandonLogLocked();
    return status;
  }
  synced_ = next_ - 1;
  synced_at_ = clock_->Now();
  MarkLocked();
  return absl::OkStatus();
}

void CoordinatorStore::AbandonLogLocked() {
  log_.reset();
  ++next_;
}

}  // namespace ballast
