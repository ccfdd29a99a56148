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
#include "common/storage/framed_message.h"
#include "common/storage/snapshot_file.h"
#include "server/durability/shard_record.h"
#include "server/durability/shard_replay.h"
#include "server/durability/shard_snapshot.h"

namespace ballast {
namespace {

constexpr absl::string_view kLog = "log";
constexpr absl::string_view kSnapshot = "snapshot";
constexpr absl::string_view kPartial = ".partial";

absl::Status In(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

bool NeedsLog(v1::Durability::Mode mode) { return mode == v1::Durability::WAL || mode == v1::Durability::WAL_SYNC; }

uint64_t StateBytes(const ShardCapture& capture) {
  uint64_t bytes = 0;
  for (const ShardCapture::SliceCapture& slice : capture.slices) {
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
    return absl::FailedPreconditionError(
        absl::StrCat("state folder ", options.folder, ": another process uses it; each server needs its own"));
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

std::string ShardStore::PathOf(absl::string_view kind, uint64_t position) const {
  return absl::StrFormat("%s/%s-%020d", options_.folder, kind, position);
}

absl::StatusOr<std::vector<uint64_t>> ShardStore::Positions(absl::string_view kind) const {
  const absl::StatusOr<std::vector<std::string>> names = files_->List(options_.folder);
  if (!names.ok()) return names.status();
  std::vector<uint64_t> positions;
  for (const std::string& name : *names) {
    uint64_t position = 0;
    const absl::string_view text = name;
    if (absl::StartsWith(text, absl::StrCat(kind, "-")) && absl::SimpleAtoi(text.substr(kind.size() + 1), &position)) {
      positions.push_back(position);
    }
  }
  return positions;
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
  const std::string path = PathOf(kSnapshot, position);
  absl::StatusOr<std::unique_ptr<SnapshotReader>> reader = SnapshotReader::Open(path);
  if (!reader.ok()) return reader.status();
  const internal::v1::SnapshotHeader& header = (*reader)->header();
  if (header.shard() != options_.shard) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": holds shard ", header.shard(), ", want shard ", options_.shard));
  }
  ShardCapture capture = ToCapture(header);
  while (true) {
    absl::StatusOr<std::optional<SnapshotReader::SliceRecord>> slice = (*reader)->Next();
    if (!slice.ok()) return slice.status();
    if (!slice->has_value()) break;
    capture.slices.push_back(ToSliceCapture(**slice));
  }
  const uint64_t next = header.position() + 1;
  {
    absl::MutexLock lock(&write_mutex_);
    state_bytes_ = StateBytes(capture);
  }
  if (absl::Status status = shard_->Restore(std::move(capture)); !status.ok()) return In(path, status);
  return next;
}

absl::Status ShardStore::Replay(const RecordReader::Record& record, const std::string& path, Recovered& recovered) {
  internal::v1::ShardRecord change;
  const absl::StatusOr<absl::string_view> behind = ParseFramed(record.body, change);
  absl::Status status = behind.status();
  if (status.ok()) {
    switch (change.kind_case()) {
      case internal::v1::ShardRecord::kHeader:
        if (change.header().format() > kStorageFormat) {
          return absl::FailedPreconditionError(absl::StrCat(path, ": got format ", change.header().format(),
                                                            ", which a newer Ballast wrote; want at most ",
                                                            kStorageFormat));
        }
        if (change.header().shard() != options_.shard) {
          return absl::FailedPreconditionError(
              absl::StrCat(path, ": is the log of shard ", change.header().shard(), ", want shard ", options_.shard));
        }
        break;
      default: {
        const absl::StatusOr<bool> applied = ApplyChange(*shard_, change, *behind);
        status = applied.status();
        if (applied.ok()) ++(*applied ? recovered.records : recovered.refused_records);
      }
    }
  }
  if (status.ok()) return status;
  // Each was found good when it was written.
  const absl::StatusCode code =
      absl::IsFailedPrecondition(status) ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kDataLoss;
  return absl::Status(
      code, absl::StrCat(path, ": record ", record.position, " at offset ", record.offset, ": ", status.message()));
}

absl::Status ShardStore::ReplayLogs(Recovered& recovered, uint64_t& next) {
  const absl::StatusOr<std::vector<uint64_t>> logs = Positions(kLog);
  if (!logs.ok()) return logs.status();
  uint64_t expected = 0;
  for (size_t i = 0; i < logs->size(); ++i) {
    const uint64_t first = (*logs)[i];
    const std::string path = PathOf(kLog, first);
    // Files that the snapshot stands for whole would have been removed, had there been time.
    if (i + 1 < logs->size() && (*logs)[i + 1] <= next) continue;
    if (first > next || (expected > 0 && first != expected)) {
      return absl::DataLossError(absl::StrCat(path, ": begins with record ", first, ", want record ", next,
                                              ": what is between them is missing"));
    }
    absl::StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Open(path, first);
    if (!reader.ok()) return reader.status();
    uint64_t position = first;
    while (true) {
      absl::StatusOr<std::optional<RecordReader::Record>> record = (*reader)->Next();
      if (!record.ok()) return record.status();
      if (!record->has_value()) break;
      ++position;
      if ((*record)->position < next) continue;
      if (absl::Status status = Replay(**record, path, recovered); !status.ok()) return status;
    }
    next = std::max(next, position);
    expected = position;
    recovered.found = true;
    recovered.log_bytes += (*reader)->end();
    const bool last = i + 1 == logs->size();
    if (!last && (*logs)[i + 1] == position) continue;
    // Also where nothing is cut: what was read may not be on the disk yet.
    return CutBehind(*logs, i, **reader, recovered);
  }
  return absl::OkStatus();
}

// The log ends within file `last`, for a crash took the rest: of it, and of what may follow it.
absl::Status ShardStore::CutBehind(absl::Span<const uint64_t> logs, size_t last, const RecordReader& reader,
                                   Recovered& recovered) {
  const std::string path = PathOf(kLog, logs[last]);
  for (size_t later = last + 1; later < logs.size(); ++later) {
    const std::string later_path = PathOf(kLog, logs[later]);
    absl::StatusOr<std::unique_ptr<RecordReader>> rest = RecordReader::Open(later_path, logs[later]);
    if (!rest.ok()) return rest.status();
    const absl::StatusOr<std::optional<RecordReader::Record>> record = (*rest)->Next();
    if (!record.ok()) return record.status();
    if (record->has_value() && (*record)->synced >= reader.next()) {
      return absl::DataLossError(absl::StrCat(path, ": record ", reader.next(), " at offset ", reader.end(),
                                              " is damaged, though ", later_path, " follows"));
    }
  }
  for (size_t later = last + 1; later < logs.size(); ++later) {
    recovered.cut_bytes += 1;
    if (absl::Status status = files_->Remove(PathOf(kLog, logs[later])); !status.ok()) return status;
  }
  recovered.cut_bytes += reader.unfinished();
  return files_->Truncate(path, reader.end());
}

absl::StatusOr<ShardStore::Recovered> ShardStore::Recover() {
  const absl::Time start = absl::Now();
  // What is declared again is written down already.
  recovering_ = true;
  const absl::Cleanup recovering_no_more = [this] { recovering_ = false; };
  Recovered recovered;
  const absl::StatusOr<std::vector<uint64_t>> snapshots = Positions(kSnapshot);
  if (!snapshots.ok()) return snapshots.status();
  uint64_t next = 1;
  if (!snapshots->empty()) {
    const absl::StatusOr<uint64_t> loaded = LoadSnapshot(snapshots->back());
    if (!loaded.ok()) return loaded.status();
    next = *loaded;
    recovered.found = true;
    recovered.snapshot_position = next - 1;
  }
  if (absl::Status status = ReplayLogs(recovered, next); !status.ok()) return status;
  if (absl::Status status = RemovePartial(); !status.ok()) return status;
  const JobTerms job = shard_->status().job;
  if (!job.name.empty() && NeedsLog(job.durability.mode())) {
    if (absl::Status begun = BeginWriting(job, next); !begun.ok()) return begun;
    {
      absl::MutexLock lock(&write_mutex_);
      finished_bytes_ = recovered.log_bytes;
    }
    shard_->StartJournal(this);
  }
  recovered.took = absl::Now() - start;
  if (recovered.found) {
    shard_->NoteRecovery(
        {recovered.records, recovered.refused_records, recovered.cut_bytes, absl::ToDoubleSeconds(recovered.took)});
  }
  return recovered;
}

absl::StatusOr<ShardJournal*> ShardStore::Start(const JobTerms& job) {
  if (recovering_ || !NeedsLog(job.durability.mode())) return nullptr;
  if (commit_ == nullptr) {
    if (absl::Status status = BeginWriting(job, 1); !status.ok()) return status;
  }
  return this;
}

absl::Status ShardStore::BeginWriting(const JobTerms& job, uint64_t next) {
  // A file that was begun and never written to.
  if (absl::Status status = files_->Remove(PathOf(kLog, next)); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<RecordWriter>> log = CreateLog(job.name, next, std::nullopt);
  if (!log.ok()) return log.status();
  GroupCommit::Options options;
  options.wait_for_sync = job.durability.mode() == v1::Durability::WAL_SYNC;
  options.synced = next - 1;
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
  const std::string path = PathOf(kLog, first);
  if (spare.has_value()) {
    const std::string old = PathOf(kLog, *spare);
    absl::StatusOr<std::unique_ptr<RecordWriter>> log = RecordWriter::Reuse(files_, old, path, first);
    if (log.ok()) return log;
    // Not every file system can.
    files_->Remove(old).IgnoreError();
  }
  return RecordWriter::Create(files_, path, first);
}

absl::StatusOr<std::shared_ptr<RecordWriter>> ShardStore::CreateLog(const std::string& job, uint64_t first,
                                                                    std::optional<uint64_t> spare) {
  const std::string path = PathOf(kLog, first);
  absl::StatusOr<std::unique_ptr<RecordWriter>> log = OpenLog(first, spare);
  if (!log.ok()) return log.status();
  internal::v1::ShardRecord record;
  record.mutable_header()->set_format(kStorageFormat);
  record.mutable_header()->set_job(job);
  record.mutable_header()->set_shard(options_.shard);
  absl::Status status = (*log)->Append({FrameMessage(record)}, commit_ == nullptr ? first - 1 : commit_->synced());
  if (status.ok()) return std::shared_ptr<RecordWriter>(*std::move(log));
  files_->Remove(path).IgnoreError();
  return status;
}

absl::Status ShardStore::RotateLocked() {
  const uint64_t first = log_->next();
  std::optional<uint64_t> spare;
  if (!spares_.empty()) {
    spare = spares_.back();
    spares_.pop_back();
  }
  absl::StatusOr<std::shared_ptr<RecordWriter>> log = CreateLog(job_, first, spare);
  if (!log.ok()) return log.status();
  logs_.push_back(first);
  finished_bytes_ += log_->size();
  log_ = *std::move(log);
  commit_->OnWritten(log_->next() - 1, log_);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ShardStore::Append(const internal::v1::ShardRecord& record,
                                            absl::Span<const absl::string_view> behind, absl::FunctionRef<bool()> admit,
                                            absl::FunctionRef<void()> in_order) {
  const std::string frame = FrameMessage(record);
  std::vector<absl::string_view> parts = {frame};
  parts.insert(parts.end(), behind.begin(), behind.end());
  uint64_t position = 0;
  bool long_enough = false;
  {
    absl::MutexLock lock(&write_mutex_);
    if (log_->size() >= options_.file_bytes) {
      if (absl::Status status = RotateLocked(); !status.ok()) return status;
    }
    if (!admit()) return 0;
    position = log_->next();
    if (absl::Status status = log_->Append(parts, commit_->synced()); !status.ok()) return status;
    commit_->OnWritten(position, log_);
    in_order();
    // The checkpoint that a tensor began with may be gone later.
    long_enough =
        finished_bytes_ + log_->size() >= SnapshotLengthLocked() || !record.declaration().checkpoint().empty();
  }
  if (long_enough) {
    absl::MutexLock lock(&mutex_);
    snapshot_due_ = true;
  }
  return position;
}

void ShardStore::AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) {
  commit_->Await(position, std::move(done));
}

absl::Status ShardStore::TakeSnapshot() {
  absl::MutexLock one(&snapshot_mutex_);
  uint64_t position = 0, log_bytes = 0;
  absl::Status rotated;
  const ShardCapture capture = shard_->Capture([&] {
    absl::MutexLock lock(&write_mutex_);
    position = log_->next() - 1;
    rotated = RotateLocked();
    // Else the next record would ask for another snapshot.
    if (rotated.ok()) log_bytes = std::exchange(finished_bytes_, 0);
  });
  if (!rotated.ok()) return rotated;
  const std::string path = PathOf(kSnapshot, position);
  const std::string partial = absl::StrCat(path, kPartial);
  absl::Status status = files_->Remove(partial);
  if (status.ok()) {
    status = WriteSnapshot(files_, partial, {.shard = options_.shard, .position = position}, capture);
  }
  if (status.ok()) status = files_->Rename(partial, path);
  {
    absl::MutexLock lock(&write_mutex_);
    if (status.ok()) {
      state_bytes_ = StateBytes(capture);
    } else {
      finished_bytes_ += log_bytes;
    }
  }
  if (status.ok()) return Prune(position);
  files_->Remove(partial).IgnoreError();
  return status;
}

uint64_t ShardStore::SnapshotLengthLocked() const { return std::max(options_.log_bytes, state_bytes_); }

void ShardStore::KeepSparesLocked(uint64_t position) {
  // What the log needs until the next snapshot.
  const size_t most = SnapshotLengthLocked() / options_.file_bytes + 1;
  const auto end = std::upper_bound(logs_.begin(), logs_.end(), position);
  for (auto first = logs_.begin(); first != end && spares_.size() < most; ++first) spares_.push_back(*first);
  logs_.erase(logs_.begin(), end);
}

// What the snapshot at that position stands for.
absl::Status ShardStore::Prune(uint64_t position) {
  const absl::StatusOr<std::vector<uint64_t>> snapshots = Positions(kSnapshot);
  if (!snapshots.ok()) return snapshots.status();
  const absl::StatusOr<std::vector<uint64_t>> logs = Positions(kLog);
  if (!logs.ok()) return logs.status();
  std::vector<uint64_t> spares;
  {
    absl::MutexLock lock(&write_mutex_);
    KeepSparesLocked(position);
    spares = spares_;
  }
  // Older logs first: where this is cut short, a snapshot and all behind it stay.
  for (uint64_t first : *logs) {
    if (first > position || std::find(spares.begin(), spares.end(), first) != spares.end()) continue;
    if (absl::Status status = files_->Remove(PathOf(kLog, first)); !status.ok()) return status;
  }
  for (uint64_t older : *snapshots) {
    if (older >= position) continue;
    if (absl::Status status = files_->Remove(PathOf(kSnapshot, older)); !status.ok()) return status;
  }
  absl::MutexLock lock(&write_mutex_);
  ++snapshots_;
  return absl::OkStatus();
}

void ShardStore::SnapshotUntilStopped() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this] {
        mutex_.AssertReaderHeld();
        return stopping_ || snapshot_due_;
      };
      mutex_.Await(absl::Condition(&due));
      if (stopping_) return;
      snapshot_due_ = false;
    }
    // A disk that is full may have room later; until then the log is all there is.
    TakeSnapshot().IgnoreError();
  }
}

ShardStore::Status ShardStore::status() const {
  absl::MutexLock lock(&write_mutex_);
  Status status;
  status.snapshots = snapshots_;
  if (log_ == nullptr) return status;
  status.log_bytes = finished_bytes_ + log_->size();
  status.position = log_->next() - 1;
  status.synced = commit_->synced();
  return status;
}

}  // namespace ballast
