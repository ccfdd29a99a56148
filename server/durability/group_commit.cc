// SPDX-License-Identifier: Apache-2.0
#include "server/durability/group_commit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/concurrency/named_thread.h"
#include "common/status/error_reason.h"

namespace ballast {

GroupCommit::GroupCommit(Options options, std::function<void(absl::Status)> on_failure)
    : options_(options),
      on_failure_(std::move(on_failure)),
      written_(options.synced),
      synced_(options.synced),
      thread_(NamedThread("group commit", [this] { Run(); })) {}

GroupCommit::~GroupCommit() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void GroupCommit::OnWritten(uint64_t position, uint64_t bytes, std::shared_ptr<RecordWriter> file) {
  absl::MutexLock lock(&mutex_);
  if (files_.empty() || files_.back() != file) {
    files_.push_back(std::move(file));
    hurried_ = false;
  }
  const bool first = written_ == synced_;
  written_ = position;
  unsynced_bytes_ += bytes;
  if (!first) return;
  unsynced_since_ = absl::Now();
  changed_.SignalAll();
}

void GroupCommit::Await(uint64_t position, Done done) {
  absl::Status failed;
  {
    absl::MutexLock lock(&mutex_);
    failed = failed_;
    const bool in_time = !options_.wait_for_sync && absl::Now() - unsynced_since_ < options_.max_unsynced_age;
    if (failed.ok() && position > synced_ && !in_time) {
      waiting_.emplace(position, std::move(done));
      changed_.SignalAll();
      return;
    }
  }
  done(failed);
}

void GroupCommit::AwaitSynced(uint64_t position, Done done) {
  absl::Status failed;
  {
    absl::MutexLock lock(&mutex_);
    failed = failed_;
    if (failed.ok() && position > synced_) {
      waiting_.emplace(position, std::move(done));
      changed_.SignalAll();
      return;
    }
  }
  done(failed);
}

void GroupCommit::SyncContinuously() {
  absl::MutexLock lock(&mutex_);
  if (hurried_) return;
  hurried_ = true;
  changed_.SignalAll();
}

void GroupCommit::Fail(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  failed_elsewhere_.Update(status);
  changed_.SignalAll();
}

bool GroupCommit::MustSyncLocked() const { return stopping_ || !waiting_.empty() || !failed_elsewhere_.ok(); }

// The time by which unsynced records must be synced even if nobody waits for them.
absl::Time GroupCommit::DueLocked() const {
  if (options_.wait_for_sync || written_ == synced_) return absl::InfiniteFuture();
  return hurried_ ? absl::InfinitePast() : unsynced_since_ + options_.interval;
}

uint64_t GroupCommit::synced() const {
  absl::MutexLock lock(&mutex_);
  return synced_;
}

uint64_t GroupCommit::unsynced_bytes() const {
  absl::MutexLock lock(&mutex_);
  return unsynced_bytes_;
}

absl::Status GroupCommit::Sync(RecordWriter& file) {
  const absl::Time began = absl::Now();
  const absl::Status status = file.Sync();
  // The machine's clock may have been set back.
  const int64_t microseconds = std::max<int64_t>(absl::ToInt64Microseconds(absl::Now() - began), 0);
  if (status.ok()) sync_microseconds_.Add(static_cast<uint64_t>(microseconds));
  return status;
}

absl::Status GroupCommit::SyncFiles(const std::vector<std::shared_ptr<RecordWriter>>& files) {
  for (const auto& file : files) {
    if (absl::Status status = Sync(*file); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void GroupCommit::Run() {
  while (true) {
    std::vector<std::shared_ptr<RecordWriter>> files;
    uint64_t position = 0, bytes = 0;
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      while (!MustSyncLocked() && DueLocked() > absl::Now()) changed_.WaitWithDeadline(&mutex_, DueLocked());
      if (stopping_ && waiting_.empty() && written_ == synced_) return;
      files = files_;
      position = written_;
      bytes = unsynced_bytes_;
      status = failed_elsewhere_;
    }
    const absl::Time began = absl::Now();
    status.Update(SyncFiles(files));
    std::vector<Done> done;
    {
      absl::MutexLock lock(&mutex_);
      if (status.ok()) {
        synced_ = position;
        unsynced_bytes_ -= bytes;
        // The time of a record that was written during the sync is unknown; it is not before `began`.
        unsynced_since_ = written_ == synced_ ? absl::InfiniteFuture() : began;
        // The newest file may still be written to.
        if (!files.empty()) files_.erase(files_.begin(), files_.begin() + (files.size() - 1));
      } else {
        failed_ = WithReason(v1::ERROR_REASON_STORAGE_FAILED,
                             absl::UnavailableError(absl::StrCat("the log cannot be synced: ", status.message())));
        files_.clear();
        written_ = synced_;
        unsynced_bytes_ = 0;
      }
      const auto end = status.ok() ? waiting_.upper_bound(position) : waiting_.end();
      for (auto waiting = waiting_.begin(); waiting != end; ++waiting) done.push_back(std::move(waiting->second));
      waiting_.erase(waiting_.begin(), end);
    }
    for (Done& callback : done)
      callback(status.ok() ? status
                           : WithReason(v1::ERROR_REASON_STORAGE_FAILED, absl::UnavailableError(status.message())));
    if (!status.ok()) {
      on_failure_(status);
      return;
    }
    if (options_.on_synced) options_.on_synced(position);
  }
}

}  // namespace ballast
