// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "common/storage/framed_message.h"
#include "common/storage/snapshot_file.h"
#include "server/durability/shard_replay.h"
#include "server/durability/shard_snapshot.h"
#include "server/shard/shard_record.h"

namespace ballast {
namespace {

// From this size on, a file is synced continuously, so that little is left to sync when it ends.
uint64_t AlmostFull(uint64_t file_bytes) { return file_bytes - file_bytes / 8; }

absl::Status In(const std::string& path, const absl::Status& status) { return Annotate(status, path); }

bool NeedsLog(v1::Durability::Mode mode) { return mode == v1::Durability::WAL || mode == v1::Durability::WAL_SYNC; }

// Bytes of values and rows. Those of rows are known once they were written.
uint64_t StateBytes(const ShardState& capture) {
  uint64_t bytes = 0;
  for (const ShardState::SliceEntry& slice : capture.slices) {
    for (const ValueBuffer& array : slice.weights.arrays) bytes += array.size() * sizeof(float);
  }
  for (const ShardState::TableEntry& table : capture.table_entries) {
    bytes += table.rows->rows_read() * table.rows->row_bytes();
  }
  return bytes;
}

uint64_t StateBytes(const SnapshotPart& part) {
  if (const auto* rows = std::get_if<SnapshotRows>(&part)) return rows->images.size();
  uint64_t bytes = 0;
  if (const auto* slice = std::get_if<SnapshotSlice>(&part)) {
    for (const std::vector<float>& array : slice->arrays) bytes += array.size() * sizeof(float);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Open(Options options, FileSystem* files,
                                                             ParameterShard* shard) {
  absl::StatusOr<std::unique_ptr<ShardDirectory>> directory =
      ShardDirectory::Open(options.folder, options.shard, files);
  if (!directory.ok()) return directory.status();
  return std::unique_ptr<ShardStore>(new ShardStore(std::move(options), files, shard, *std::move(directory)));
}

ShardStore::~ShardStore() {
  snapshot_thread_.reset();
  commit_.reset();
}

absl::StatusOr<uint64_t> ShardStore::LoadSnapshot(const std::string& path) {
  absl::StatusOr<std::unique_ptr<SnapshotReader>> reader = SnapshotReader::Open(path);
  if (!reader.ok()) return reader.status();
  const internal::v1::SnapshotHeader& header = (*reader)->header();
  if (header.shard() != options_.shard) {
    return WithReason(v1::ERROR_REASON_STORAGE_FAILED,
                      absl::FailedPreconditionError(
                          absl::StrCat(path, ": holds shard ", header.shard(), ", want shard ", options_.shard)));
  }
  if (header.has_parent()) {
    return absl::DataLossError(absl::StrCat(path, ": is an increment of a checkpoint's file, want a whole snapshot"));
  }
  ShardState outline = ToCapture(header);
  absl::StatusOr<ShardBuilder> builder =
      shard_->BeginRestore(std::move(outline.job), std::move(outline.tensors), outline.tables);
  if (!builder.ok()) return In(path, builder.status());
  uint64_t bytes = 0;
  while (true) {
    absl::StatusOr<std::optional<SnapshotPart>> part = (*reader)->Next();
    if (!part.ok()) return part.status();
    if (!part->has_value()) break;
    bytes += StateBytes(**part);
    if (absl::Status status = AddPart(**std::move(part), 0, *builder); !status.ok()) return In(path, status);
  }
  const uint64_t next = header.position() + 1;
  {
    absl::MutexLock lock(&write_mutex_);
    state_bytes_ = bytes;
  }
  absl::StatusOr<BuiltShard> built = std::move(*builder).Finish(std::move(outline.windows));
  if (!built.ok()) return In(path, built.status());
  if (absl::Status status = shard_->Adopt(*std::move(built)); !status.ok()) return In(path, status);
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
  absl::StatusOr<LogEnd> end =
      directory_->ReadLog(next, [&](const LogRecord& record) { return Replay(record, recovered); });
  if (!end.ok() || !end->newest.has_value()) return end;
  recovered.found = true;
  recovered.log_bytes = end->bytes;
  recovered.cut_bytes = end->unfinished;
  return end;
}

absl::StatusOr<ShardStore::Recovered> ShardStore::Recover() {
  const absl::Time start = absl::Now();
  // Declarations that are replayed are already in the log.
  recovering_ = true;
  const absl::Cleanup end_recovery = [this] { recovering_ = false; };
  Recovered recovered;
  const absl::StatusOr<std::optional<std::string>> snapshot = directory_->NewestSnapshot();
  if (!snapshot.ok()) return snapshot.status();
  uint64_t next = 1;
  if (snapshot->has_value()) {
    struct stat file = {};
    if (stat((*snapshot)->c_str(), &file) == 0) {
      absl::MutexLock lock(&newest_mutex_);
      snapshot_ = absl::TimeFromTimespec(file.st_mtim);
    }
    const absl::StatusOr<uint64_t> loaded = LoadSnapshot(**snapshot);
    if (!loaded.ok()) return loaded.status();
    next = *loaded;
    recovered.found = true;
    recovered.snapshot_position = next - 1;
  }
  const absl::StatusOr<LogEnd> end = ReplayLogs(recovered, next);
  if (!end.ok()) return end.status();
  if (absl::Status status = directory_->RemovePartial(); !status.ok()) return status;
  const JobConfig job = shard_->status().job;
  if (!job.name.empty() && NeedsLog(job.durability.mode())) {
    if (absl::Status begun = BeginWriting(job, *end); !begun.ok()) return begun;
    {
      absl::MutexLock lock(&write_mutex_);
      finished_bytes_ = recovered.log_bytes;
      NoteBytesLocked();
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
  absl::StatusOr<std::unique_ptr<RecordWriter>> log = directory_->StartLog(job.name, end);
  if (!log.ok()) return log.status();
  GroupCommit::Options options;
  options.wait_for_sync = job.durability.mode() == v1::Durability::WAL_SYNC;
  options.synced = end.next - 1;
  options.on_synced = [this](uint64_t position) { Mark(position); };
  commit_ = std::make_unique<GroupCommit>(options, [this](absl::Status status) {
    if (options_.on_failure) options_.on_failure(std::move(status));
  });
  snapshot_thread_ = std::make_unique<SnapshotThread>(SnapshotThread::Options{
      .first_retry = options_.first_retry,
      .longest_retry = options_.longest_retry,
      .take =
          [this] {
            absl::Status status = TakeSnapshot();
            shard_->NoteSnapshot(status.ok());
            return status;
          },
      .on_failure = [this](const absl::Status& status, absl::Duration retry) { LogFailure(status, retry); },
  });
  absl::MutexLock lock(&write_mutex_);
  log_ = *std::move(log);
  commit_->OnWritten(log_->next() - 1, log_->size(), log_);
  NoteBytesLocked();
  return absl::OkStatus();
}

absl::Status ShardStore::SyncLog(RecordWriter& log) {
  const absl::Status status = commit_->Sync(log);
  if (status.ok()) return status;
  // The next sync of the file may succeed even though this one lost data.
  commit_->Fail(status);
  return WithReason(v1::ERROR_REASON_STORAGE_FAILED, absl::UnavailableError(status.message()));
}

absl::Status ShardStore::RotateLocked() {
  if (!failed_.ok()) return failed_;
  // Only the last file may have a torn end; a recovery treats a broken record in any other file as damage.
  if (absl::Status status = SyncLog(*log_); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<RecordWriter>> log = directory_->ContinueLog(*log_);
  if (absl::IsDataLoss(log.status())) {
    // If one more record went to this file, a recovery would find two files with that position and refuse both.
    failed_ = WithReason(v1::ERROR_REASON_STORAGE_FAILED, absl::UnavailableError(log.status().message()));
    commit_->Fail(log.status());
    return failed_;
  }
  if (!log.ok()) return log.status();
  finished_bytes_ += log_->size();
  log_ = *std::move(log);
  commit_->OnWritten(log_->next() - 1, log_->size(), log_);
  NoteBytesLocked();
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
  NoteBytesLocked();
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
    const uint64_t bytes = log_->size();
    if (absl::Status status = log_->Append(parts, commit_->synced()); !status.ok()) return status;
    commit_->OnWritten(position, log_->size() - bytes, log_);
    NoteBytesLocked();
    in_order();
    if (log_->size() >= AlmostFull(options_.file_bytes)) commit_->SyncContinuously();
    // The checkpoint from which a tensor started may be deleted later.
    snapshot_due =
        finished_bytes_ + log_->size() >= SnapshotLengthLocked() || !record.declaration().checkpoint().empty();
  }
  if (snapshot_due) snapshot_thread_->Request();
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
  const absl::Time began = absl::Now();
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
  size_t spares = 0;
  {
    absl::MutexLock lock(&write_mutex_);
    if (!status.ok()) {
      finished_bytes_ += log_bytes;
      NoteBytesLocked();
      return status;
    }
    state_bytes_ = state_bytes;
    // The number of files that the log needs until the next snapshot.
    spares = SnapshotLengthLocked() / options_.file_bytes + 1;
  }
  {
    absl::MutexLock lock(&newest_mutex_);
    snapshot_ = absl::Now();
    snapshot_took_ = std::max(snapshot_ - began, absl::ZeroDuration());
  }
  return directory_->Prune(position, spares);
}

absl::Status ShardStore::WriteSnapshotOf(const ShardState& capture, uint64_t position) {
  const SnapshotPlace place{.shard = options_.shard, .position = position};
  return directory_->AddSnapshot(position, [&](const std::string& path) {
    absl::Status status = WriteSnapshot(files_, path, place, capture);
    // The snapshot replaces the log, so a recovery must be able to read it.
    if (status.ok()) status = VerifySnapshot(path, place, capture);
    if (!status.ok()) return status;
    std::shared_ptr<RecordWriter> log;
    {
      absl::MutexLock lock(&write_mutex_);
      log = log_;
    }
    // The log must reach the snapshot's position on the disk, or a recovery would report damage.
    return SyncLog(*log);
  });
}

uint64_t ShardStore::SnapshotLengthLocked() const { return std::max(options_.log_bytes, state_bytes_); }

void ShardStore::LogFailure(const absl::Status& status, absl::Duration retry) const {
  if (!options_.log) return;
  options_.log(absl::StrCat("shard ", options_.shard, ": snapshot failed: ", status.message(),
                            "; the log is kept, next attempt in ", absl::FormatDuration(retry)));
}

std::optional<LogStatus> ShardStore::log() const {
  LogStatus log;
  log.bytes = log_bytes_.load(std::memory_order_relaxed);
  log.unsynced_bytes = commit_->unsynced_bytes();
  log.sync_microseconds = commit_->sync_microseconds();
  absl::MutexLock lock(&newest_mutex_);
  log.snapshot = snapshot_;
  log.snapshot_took = snapshot_took_;
  return log;
}

ShardStore::Status ShardStore::status() const {
  absl::MutexLock lock(&write_mutex_);
  Status status;
  if (log_ == nullptr) return status;
  status.snapshot_failures = snapshot_thread_->failures();
  status.log_bytes = finished_bytes_ + log_->size();
  status.position = log_->next() - 1;
  status.synced = commit_->synced();
  return status;
}

}  // namespace ballast
