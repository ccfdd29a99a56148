// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator_store.h"

#include <algorithm>
#include <utility>

#include "common/storage/coordinator_log.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<CoordinatorStore>> CoordinatorStore::Open(FileSystem* files, std::string folder,
                                                                         const Clock* clock) {
  if (absl::Status status = files->MakeFolder(folder); !status.ok()) return status;
  std::unique_ptr<CoordinatorStore> store(new CoordinatorStore(files, std::move(folder), clock));
  if (absl::Status status = store->Recover(); !status.ok()) return status;
  return store;
}

absl::Status CoordinatorStore::Recover() {
  absl::StatusOr<CoordinatorStates> states = ReadCoordinatorLogs(*files_, folder_);
  if (!states.ok()) return states.status();
  recovered_ = std::move(states->last);
  next_ = states->next;
  return absl::OkStatus();
}

absl::Status CoordinatorStore::SaveInNewLog(absl::string_view state) {
  const absl::StatusOr<std::vector<uint64_t>> before = ListCoordinatorLogs(*files_, folder_);
  if (!before.ok()) return before.status();
  const std::string path = CoordinatorLogPath(folder_, next_);
  absl::StatusOr<std::unique_ptr<RecordWriter>> log = RecordWriter::Create(files_, path, next_);
  absl::Status status = log.status();
  if (status.ok()) status = (*log)->Append({state}, synced_);
  // The others must not go before it is there to stay.
  if (status.ok()) status = (*log)->Sync();
  if (!status.ok()) {
    // A directory's first log keeps its name until it holds a state: without that log, a state must have been there.
    if (!files_->Remove(path).ok()) ++next_;
    return status;
  }
  log_ = *std::move(log);
  next_ = log_->next();
  last_ = synced_ = next_ - 1;
  synced_at_ = clock_->Now();
  for (uint64_t first : *before) {
    // One that stays is older, and goes with the next.
    files_->Remove(CoordinatorLogPath(folder_, first)).IgnoreError();
  }
  Mark();
  return absl::OkStatus();
}

void CoordinatorStore::Mark() {
  const absl::Status status = log_->Append({}, synced_);
  next_ = log_->next();
  // It need not be there, but what was begun must not stay.
  if (!status.ok() && !absl::IsResourceExhausted(status)) AbandonLog();
}

absl::Status CoordinatorStore::Save(absl::string_view state, bool sync) {
  if (log_ == nullptr || log_->size() >= kLogBytes) return SaveInNewLog(state);
  const absl::Status status = log_->Append({state}, synced_);
  next_ = log_->next();
  if (status.ok()) {
    last_ = next_ - 1;
    return sync ? Sync() : status;
  }
  // Only an append that found the disk full leaves the file as it was.
  if (!absl::IsResourceExhausted(status)) AbandonLog();
  return status;
}

void CoordinatorStore::Settle() {
  const bool due = log_ != nullptr && synced_ < last_ && clock_->Now() - synced_at_ >= kSyncInterval;
  // Where that fails, the next state begins a log, and syncs it.
  if (due) Sync().IgnoreError();
}

absl::Status CoordinatorStore::Sync() {
  if (absl::Status status = log_->Sync(); !status.ok()) {
    // A full disk shows here as well, and then the kernel may have dropped what it could not write.
    AbandonLog();
    return status;
  }
  synced_ = next_ - 1;
  synced_at_ = clock_->Now();
  Mark();
  return absl::OkStatus();
}

void CoordinatorStore::AbandonLog() {
  log_.reset();
  ++next_;
}

}  // namespace ballast
