// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "common/storage/framed_message.h"
#include "common/storage/snapshot_file.h"
#include "server/durability/shard_replay.h"
#include "server/durability/shard_snapshot.h"
#include "server/shard/shard_record.h"

namespace ballast {
namespace {

constexpr absl::string_view kPartial = ".partial";

// From this size on, a file is synced continuously, so that little is left to sync when it ends.
uint64_t AlmostFull(uint64_t file_bytes) { return file_bytes - file_bytes / 8; }

absl::Status In(const std::string& path, const absl::Status& status) { return Annotate(status, path); }

bool NeedsLog(v1::Durability::Mode mode) { return mode == v1::Durability::WAL || mode == v1::Durability::WAL_SYNC; }

uint64_t StateBytes(const ShardState& capture) {
  uint64_t bytes = 0;
  for (const ShardState::SliceEntry& slice : capture.slices) {
    for (const ValueBuffer& array : slice.weights.arrays) bytes += array.size() * sizeof(float);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Open(Options options, FileSystem* files,
                                                             ParameterShard* shard) {
  if (absl::Status status = files->MakeFolder(options.folder); !status.ok()) return status;
  const std::string path = absl::StrCat(options.folder, "/lock");
  const int lock = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return absl::ErrnoToStatus(errno, path);
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    close(lock);
    return WithReason(
        v1::ERROR_REASON_STORAGE_FAILED,
        absl::FailedPreconditionError(absl::StrCat("state directory ", options.folder,
                                                   " is in use by another process; each server needs its own")));
  }
  return std::unique_ptr<ShardStore>(new ShardStore(std::move(options), files, shard, lock));
}

ShardStore::~ShardStore() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (snapshots_thread_.joinable()) snapshots_thread_.join();
  commit_.reset();
  close(lock_);
}

absl::Status ShardStore::RemovePartial() {
  const absl::StatusOr<std::vector<std::string>> names = files_->List(options_.folder);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!absl::EndsWith(name, kPartial)) continue;
    if (absl::Status status = files_->Remove(absl::StrCat(options_.folder, "/", name)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ShardStore::LoadSnapshot(uint64_t position) {
  const std::string path = SnapshotPath(options_.folder, position);
  absl::StatusOr<std::unique_ptr<SnapshotReader>> reader = SnapshotReader::Open(path);
  if (!reader.ok()) return reader.status();
  const internal::v1::SnapshotHeader& header = (*reader)->header();
  if (header.shard() != options_.shard) {
    return WithReason(v1::ERROR_REASON_STORAGE_FAILED,
                      absl::FailedPreconditionError(
                          absl::StrCat(path, ": holds shard ", header.shard(), ", want shard ", options_.shard)));
  }
  ShardState capture = ToCapture(header);
  while (true) {
    absl::StatusOr<std::optional<SnapshotSlice>> slice = (*reader)->Next();
    if (!slice.ok()) return slice.status();
    if (!slice->has_value()) break;
    capture.slices.push_back(ToSliceEntry(**std::move(slice)));
  }
  const uint64_t next = header.position() + 1;
  {
    absl::MutexLock lock(&write_mutex_);
    state_bytes_ = StateBytes(capture);
  }
  if (absl::Status status = shard_->Restore(std::move(capture)); !status.ok()) return In(path, status);
  return next;
}

absl::Status ShardStore::Replay(const LogRecord& record, Recovered& recovered) {
  const absl::StatusOr<bool> applied = ApplyChange(*shard_, record.change, record.behind);
  if (applied.ok()) {
    ++(*applied ? recovered.records : recovered.refused_records);
    return absl::OkStatus();
  }
  // Every record was valid when it was written.
  const absl::StatusCode code = absl::IsFailedPrecondition(applied.status()) ? absl::StatusCode::kFailedPrecondition
                                                                             : absl::StatusCode::kDataLoss;
  return WithReason(v1::ERROR_REASON_STORAGE_FAILED,
                    absl::Status(code, absl::StrCat(record.path, ": record ", record.position, " at offset ",
                                                    record.offset, ": ", applied.status().message())));
}

absl::StatusOr<LogEnd> ShardStore::ReplayLogs(Recovered& recovered, uint64_t next) {
  absl::StatusOr<LogEnd> end = ReadShardLog(*files_, options_.folder, next, options_.shard,
                                            [&](const LogRecord& record) { return Replay(record, recovered); });
  if (!end.ok() || !end->newest.has_value()) return end;
  recovered.found = true;
  recovered.log_bytes = end->bytes;
  recovered.cut_bytes = end->unfinished;
  // Truncates (and syncs) even if nothing is cut, because the records may not be on the disk yet.
  absl::Status cut = files_->Truncate(LogPath(options_.folder, *end->newest), end->newest_bytes);
  if (!cut.ok()) return cut;
  return end;
}

absl::StatusOr<ShardStore::Recovered> ShardStore::Recover() {
  const absl::Time start = absl::Now();
  // Declarations that are replayed are already in the log.
  recovering_ = true;
  const absl::Cleanup end_recovery = [this] { recovering_ = false; };
  Recovered recovered;
  const absl::StatusOr<std::vector<uint64_t>> snapshots = ListSnapshots(*files_, options_.folder);
  if (!snapshots.ok()) return snapshots.status();
  uint64_t next = 1;
  if (!snapshots->empty()) {
    const absl::StatusOr<uint64_t> loaded = LoadSnapshot(snapshots->back());
    if (!loaded.ok()) return loaded.status();
    next = *loaded;
    recovered.found = true;
    recovered.snapshot_position = next - 1;
  }
  const absl::StatusOr<LogEnd> end = ReplayLogs(recovered, next);
  if (!end.ok()) return end.status();
  if (absl::Status status = RemovePartial(); !status.ok()) return status;
  const JobConfig job = shard_->status().job;
  if (!job.name.empty() && NeedsLog(job.durability.mode())) {
    if (absl::Status begun = BeginWriting(job, *end); !begun.ok()) return begun;
    {
      absl::MutexLock lock(&write_mutex_);
      finished_bytes_ = recovered.log_bytes;
    }
    shard_->StartJournal(this);
  }
  recovered.took = absl::Now() - start;
  if (recovered.found) {
    // A process failure loses nothing, but it cannot be distinguished from a machine failure.
    const bool may_have_lost = job.durability.mode() == v1::Durability::WAL;
    shard_->NoteRecovery({may_have_lost, recovered.records, recovered.refused_records, recovered.cut_bytes,
                          absl::ToDoubleSeconds(recovered.took)});
  }
  return recovered;
}

absl::StatusOr<ShardJournal*> ShardStore::Start(const JobConfig& job) {
  if (recovering_ || !NeedsLog(job.durability.mode())) return nullptr;
  if (commit_ == nullptr) {
    if (absl::Status status = BeginWriting(job, LogEnd()); !status.ok()) return status;
  }
  return this;
}

absl::Status ShardStore::BeginWriting(const JobConfig& job, const LogEnd& end) {
  const uint64_t next = end.next;
  // Removes a file that was created but never written to.
  if (absl::Status status = files_->Remove(LogPath(options_.folder, next)); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<RecordWriter>> log = CreateLog(job.name, next, end.last, std::nullopt);
  if (!log.ok()) return log.status();
  GroupCommit::Options options;
  options.wait_for_sync = job.durability.mode() == v1::Durability::WAL_SYNC;
  options.synced = next - 1;
  options.on_synced = [this](uint64_t position) { Mark(position); };
  commit_ = std::make_unique<GroupCommit>(options, [this](absl::Status status) {
    if (options_.on_failure) options_.on_failure(std::move(status));
  });
  {
    absl::MutexLock lock(&write_mutex_);
    job_ = job.name;
    log_ = *std::move(log);
    logs_.push_back(next);
    commit_->OnWritten(log_->next() - 1, log_);
  }
  snapshots_thread_ = std::thread([this] { SnapshotUntilStopped(); });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RecordWriter>> ShardStore::OpenLog(uint64_t first, std::optional<uint64_t> spare) {
  const std::string path = LogPath(options_.folder, first);
  if (spare.has_value()) {
    const std::string old = LogPath(options_.folder, *spare);
    absl::StatusOr<std::unique_ptr<RecordWriter>> log = RecordWriter::Reuse(files_, old, path, first);
    if (log.ok() || absl::IsDataLoss(log.status())) return log;
    // Not every file system supports reuse.
    files_->Remove(old).IgnoreError();
  }
  return RecordWriter::Create(files_, path, first);
}

absl::StatusOr<std::shared_ptr<RecordWriter>> ShardStore::CreateLog(
    const std::string& job, uint64_t first, const std::optional<internal::v1::LogHeader::Previous>& previous,
    std::optional<uint64_t> spare) {
  absl::StatusOr<std::unique_ptr<RecordWriter>> log = OpenLog(first, spare);
  if (!log.ok()) return log.status();
  internal::v1::ShardRecord record;
  internal::v1::LogHeader* const header = record.mutable_header();
  header->set_format(kLogFormat);
  header->set_job(job);
  header->set_shard(options_.shard);
  if (previous.has_value()) *header->mutable_previous() = *previous;
  // All earlier records are on the disk.
  absl::Status status = (*log)->Append({FrameMessage(record)}, first - 1);
  if (status.ok()) return std::shared_ptr<RecordWriter>(*std::move(log));
  return DropLog(LogPath(options_.folder, first), status);
}

absl::Status ShardStore::DropLog(const std::string& path, const absl::Status& reason) {
  // A machine failure can undo a removal but not a rename, and a recovery removes files with this name.
  const std::string partial = absl::StrCat(path, kPartial);
  if (absl::Status renamed = files_->Rename(path, partial); !renamed.ok()) {
    return absl::DataLossError(
        absl::StrCat(reason.message(), "; ", path, " cannot be removed durably: ", renamed.message()));
  }
  files_->Remove(partial).IgnoreError();
  return reason;
}

absl::Status ShardStore::SyncLog(RecordWriter& log) {
  const absl::Status status = log.Sync();
  if (status.ok()) return status;
  // The next sync of the file may succeed even though this one lost data.
  commit_->Fail(status);
  return WithReason(v1::ERROR_REASON_STORAGE_FAILED, absl::UnavailableError(status.message()));
}

absl::Status ShardStore::RotateLocked() {
  if (!failed_.ok()) return failed_;
  // Only the last file may have a torn end; a recovery treats a broken record in any other file as damage.
  if (absl::Status status = SyncLog(*log_); !status.ok()) return status;
  const uint64_t first = log_->next();
  std::optional<uint64_t> spare;
  if (!spares_.empty()) {
    spare = spares_.back();
    spares_.pop_back();
  }
  absl::StatusOr<std::shared_ptr<RecordWriter>> log =
      CreateLog(job_, first, DescribePrevious(logs_.back(), log_->digest()), spare);
  if (absl::IsDataLoss(log.status())) {
    // If one more record went to this file, a recovery would find two files with that position and refuse both.
    failed_ = WithReason(v1::ERROR_REASON_STORAGE_FAILED, absl::UnavailableError(log.status().message()));
    commit_->Fail(log.status());
    return failed_;
  }
  if (!log.ok()) return log.status();
  logs_.push_back(first);
  finished_bytes_ += log_->size();
  log_ = *std::move(log);
  commit_->OnWritten(log_->next() - 1, log_);
  return absl::OkStatus();
}

absl::Status ShardStore::Rotate() {
  std::shared_ptr<RecordWriter> log;
  {
    absl::MutexLock lock(&write_mutex_);
    log = log_;
  }
  if (absl::Status status = SyncLog(*log); !status.ok()) return status;
  absl::MutexLock lock(&write_mutex_);
  return RotateLocked();
}

void ShardStore::Mark(uint64_t synced) {
  internal::v1::ShardRecord record;
  record.mutable_mark();
  absl::MutexLock lock(&write_mutex_);
  // The mark is optional: without it, damage to the last record looks like an unfinished write.
  if (failed_.ok() && log_->next() == synced + 1) log_->Append({FrameMessage(record)}, synced).IgnoreError();
}

absl::StatusOr<uint64_t> ShardStore::Append(const internal::v1::ShardRecord& record,
                                            absl::Span<const absl::string_view> behind, absl::FunctionRef<bool()> admit,
                                            absl::FunctionRef<void()> in_order) {
  const std::string frame = FrameMessage(record);
  std::vector<absl::string_view> parts = {frame};
  parts.insert(parts.end(), behind.begin(), behind.end());
  uint64_t position = 0;
  bool snapshot_due = false;
  {
    absl::MutexLock lock(&write_mutex_);
    if (!failed_.ok()) return failed_;
    if (log_->size() >= options_.file_bytes) {
      if (absl::Status status = RotateLocked(); !status.ok()) return status;
    }
    if (!admit()) return 0;
    position = log_->next();
    if (absl::Status status = log_->Append(parts, commit_->synced()); !status.ok()) return status;
    commit_->OnWritten(position, log_);
    in_order();
    if (log_->size() >= AlmostFull(options_.file_bytes)) commit_->Hurry();
    // The checkpoint from which a tensor started may be deleted later.
    snapshot_due =
        finished_bytes_ + log_->size() >= SnapshotLengthLocked() || !record.declaration().checkpoint().empty();
  }
  if (snapshot_due) {
    absl::MutexLock lock(&mutex_);
    snapshot_due_ = true;
  }
  return position;
}

void ShardStore::AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) {
  commit_->Await(position, std::move(done));
}

void ShardStore::AwaitSynced(uint64_t position, std::function<void(absl::Status)> done) {
  commit_->AwaitSynced(position, std::move(done));
}

absl::Status ShardStore::TakeSnapshot() {
  absl::MutexLock one(&snapshot_mutex_);
  // Outside the shard's gate, because it waits for the disk. The snapshot then also covers the start of the new file.
  if (absl::Status status = Rotate(); !status.ok()) return status;
  uint64_t position = 0, log_bytes = 0;
  ShardState capture = shard_->Capture([&] {
    absl::MutexLock lock(&write_mutex_);
    position = log_->next() - 1;
    // Reset here, or the next record would request another snapshot.
    log_bytes = std::exchange(finished_bytes_, 0);
  });
  const absl::Status status = WriteSnapshotOf(capture, position);
  const uint64_t state_bytes = StateBytes(capture);
  // Releases the state, so that the shard no longer has to copy before it updates.
  capture = ShardState();
  {
    absl::MutexLock lock(&write_mutex_);
    if (status.ok()) {
      state_bytes_ = state_bytes;
    } else {
      finished_bytes_ += log_bytes;
    }
  }
  return status.ok() ? Prune(position) : status;
}

absl::Status ShardStore::WriteSnapshotOf(const ShardState& capture, uint64_t position) {
  const std::string path = SnapshotPath(options_.folder, position);
  const std::string partial = absl::StrCat(path, kPartial);
  const SnapshotPlace place{.shard = options_.shard, .position = position};
  absl::Status status = files_->Remove(partial);
  if (status.ok()) status = WriteSnapshot(files_, partial, place, capture);
  // The snapshot replaces the log, so a recovery must be able to read it.
  if (status.ok()) status = VerifySnapshot(partial, place, capture);
  // The log must reach the snapshot's position on the disk, or a recovery would report damage.
  std::shared_ptr<RecordWriter> log;
  {
    absl::MutexLock lock(&write_mutex_);
    log = log_;
  }
  if (status.ok()) status = SyncLog(*log);
  if (status.ok()) status = files_->Rename(partial, path);
  if (!status.ok()) files_->Remove(partial).IgnoreError();
  return status;
}

uint64_t ShardStore::SnapshotLengthLocked() const { return std::max(options_.log_bytes, state_bytes_); }

uint64_t ShardStore::KeepSparesLocked(uint64_t position) {
  // The number of files that the log needs until the next snapshot.
  const size_t most = SnapshotLengthLocked() / options_.file_bytes + 1;
  const auto end = std::prev(std::upper_bound(logs_.begin(), logs_.end(), position + 1));
  for (auto first = logs_.begin(); first != end && spares_.size() < most; ++first) spares_.push_back(*first);
  logs_.erase(logs_.begin(), end);
  return logs_.front();
}

// Removes the files that the snapshot at that position replaces.
absl::Status ShardStore::Prune(uint64_t position) {
  const absl::StatusOr<std::vector<uint64_t>> snapshots = ListSnapshots(*files_, options_.folder);
  if (!snapshots.ok()) return snapshots.status();
  const absl::StatusOr<std::vector<uint64_t>> logs = ListLogs(*files_, options_.folder);
  if (!logs.ok()) return logs.status();
  std::vector<uint64_t> spares;
  uint64_t kept = 0;
  {
    absl::MutexLock lock(&write_mutex_);
    kept = KeepSparesLocked(position);
    spares = spares_;
  }
  // Older logs first: if this is interrupted, a snapshot and all of the log after it remain.
  for (uint64_t first : *logs) {
    if (first >= kept || std::find(spares.begin(), spares.end(), first) != spares.end()) continue;
    if (absl::Status status = files_->Remove(LogPath(options_.folder, first)); !status.ok()) return status;
  }
  for (uint64_t older : *snapshots) {
    if (older >= position) continue;
    if (absl::Status status = files_->Remove(SnapshotPath(options_.folder, older)); !status.ok()) return status;
  }
  absl::MutexLock lock(&write_mutex_);
  ++snapshots_;
  return absl::OkStatus();
}

bool ShardStore::AwaitSnapshotDue() {
  absl::MutexLock lock(&mutex_);
  const auto due = [this] {
    mutex_.AssertReaderHeld();
    return stopping_ || snapshot_due_;
  };
  mutex_.Await(absl::Condition(&due));
  snapshot_due_ = false;
  return !stopping_;
}

void ShardStore::NoteFailure(const absl::Status& status, absl::Duration retry) {
  if (options_.log) {
    options_.log(absl::StrCat("shard ", options_.shard, ": snapshot failed: ", status.message(),
                              "; the log is kept, next attempt in ", absl::FormatDuration(retry)));
  }
  absl::MutexLock lock(&write_mutex_);
  ++snapshot_failures_;
}

void ShardStore::SnapshotUntilStopped() {
  absl::Duration retry = options_.first_retry;
  while (AwaitSnapshotDue()) {
    const absl::Status status = TakeSnapshot();
    shard_->NoteSnapshot(status.ok());
    if (status.ok()) {
      retry = options_.first_retry;
      continue;
    }
    // A full disk may have space later; until then the log holds the only copy of the changes.
    NoteFailure(status, retry);
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), retry);
    retry = std::min(2 * retry, options_.longest_retry);
    snapshot_due_ = true;
  }
}

ShardStore::Status ShardStore::status() const {
  absl::MutexLock lock(&write_mutex_);
  Status status;
  status.snapshots = snapshots_;
  status.snapshot_failures = snapshot_failures_;
  if (log_ == nullptr) return status;
  status.log_bytes = finished_bytes_ + log_->size();
  status.position = log_->next() - 1;
  status.synced = commit_->synced();
  return status;
}

}  // namespace ballast
