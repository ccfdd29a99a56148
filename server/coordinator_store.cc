// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr absl::string_view kLogName = "states-";

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorStore>> CoordinatorStore::Open(FileSystem* files, std::string folder,
                                                                         const Clock* clock) {
  if (absl::Status status = files->MakeFolder(folder); !status.ok()) return status;
  std::unique_ptr<CoordinatorStore> store(new CoordinatorStore(files, std::move(folder), clock));
  if (absl::Status status = store->Recover(); !status.ok()) return status;
  return store;
}

std::string CoordinatorStore::PathOf(uint64_t first) const { return absl::StrCat(folder_, "/", kLogName, first); }

absl::StatusOr<std::vector<uint64_t>> CoordinatorStore::Logs() const {
  const absl::StatusOr<std::vector<std::string>> names = files_->List(folder_);
  if (!names.ok()) return names.status();
  std::vector<uint64_t> firsts;
  for (const std::string& name : *names) {
    uint64_t first = 0;
    const absl::string_view text = name;
    if (absl::StartsWith(text, kLogName) && absl::SimpleAtoi(text.substr(kLogName.size()), &first)) {
      firsts.push_back(first);
    }
  }
  std::sort(firsts.begin(), firsts.end());
  return firsts;
}

// The last state of all logs: a newer one may be empty yet, for its process died before it wrote.
absl::Status CoordinatorStore::Recover() {
  const absl::StatusOr<std::vector<uint64_t>> logs = Logs();
  if (!logs.ok()) return logs.status();
  for (uint64_t first : *logs) {
    absl::StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Open(PathOf(first), first);
    if (!reader.ok()) return reader.status();
    while (true) {
      absl::StatusOr<std::optional<RecordReader::Record>> record = (*reader)->Next();
      if (!record.ok()) return record.status();
      if (!record->has_value()) break;
      recovered_ = std::move((*record)->body);
    }
    next_ = std::max({next_, first + 1, (*reader)->next()});
  }
  return absl::OkStatus();
}

absl::Status CoordinatorStore::SaveInNewLog(absl::string_view state) {
  const absl::StatusOr<std::vector<uint64_t>> before = Logs();
  if (!before.ok()) return before.status();
  const std::string path = PathOf(next_);
  absl::StatusOr<std::unique_ptr<RecordWriter>> log = RecordWriter::Create(files_, path, next_);
  if (!log.ok()) {
    // A log that could not be begun is not tried again under its name.
    ++next_;
    return log.status();
  }
  absl::Status status = (*log)->Append({state}, synced_);
  // The others must not go before it is there to stay.
  if (status.ok()) status = (*log)->Sync();
  if (!status.ok()) {
    ++next_;
    files_->Remove(path).IgnoreError();
    return status;
  }
  log_ = *std::move(log);
  next_ = log_->next();
  synced_ = next_ - 1;
  synced_at_ = clock_->Now();
  for (uint64_t first : *before) {
    // One that stays is older, and goes with the next.
    files_->Remove(PathOf(first)).IgnoreError();
  }
  return absl::OkStatus();
}

absl::Status CoordinatorStore::Save(absl::string_view state, bool sync) {
  if (log_ == nullptr || log_->size() >= kLogBytes) return SaveInNewLog(state);
  absl::Status status = log_->Append({state}, synced_);
  next_ = log_->next();
  if (status.ok() && sync) status = Sync();
  if (!status.ok() && !absl::IsResourceExhausted(status)) AbandonLog();
  return status;
}

void CoordinatorStore::Settle() {
  const bool due = log_ != nullptr && synced_ + 1 < next_ && clock_->Now() - synced_at_ >= kSyncInterval;
  // The next state begins a log, and syncs it.
  if (due && !Sync().ok()) AbandonLog();
}

absl::Status CoordinatorStore::Sync() {
  if (absl::Status status = log_->Sync(); !status.ok()) return status;
  synced_ = next_ - 1;
  synced_at_ = clock_->Now();
  return absl::OkStatus();
}

void CoordinatorStore::AbandonLog() {
  log_.reset();
  ++next_;
}

}  // namespace ballast
