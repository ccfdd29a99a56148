// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status/error_reason.h"
#include "common/storage/framed_message.h"

namespace ballast {
namespace {

constexpr absl::string_view kPartial = ".partial";

}  // namespace

absl::StatusOr<std::unique_ptr<ShardDirectory>> ShardDirectory::Open(std::string path, uint32_t shard,
                                                                     FileSystem* files) {
  if (absl::Status status = files->MakeFolder(path); !status.ok()) return status;
  const std::string lock_path = absl::StrCat(path, "/lock");
  const int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return absl::ErrnoToStatus(errno, lock_path);
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    close(lock);
    return WithReason(v1::ERROR_REASON_STORAGE_FAILED,
                      absl::FailedPreconditionError(absl::StrCat(
                          "state directory ", path, " is in use by another process; each server needs its own")));
  }
  return std::unique_ptr<ShardDirectory>(new ShardDirectory(std::move(path), shard, files, lock));
}

ShardDirectory::~ShardDirectory() { close(lock_); }

absl::StatusOr<std::optional<std::string>> ShardDirectory::NewestSnapshot() const {
  const absl::StatusOr<std::vector<uint64_t>> snapshots = ListSnapshots(*files_, path_);
  if (!snapshots.ok()) return snapshots.status();
  if (snapshots->empty()) return std::nullopt;
  return SnapshotPath(path_, snapshots->back());
}

absl::StatusOr<LogEnd> ShardDirectory::ReadLog(uint64_t from,
                                               absl::FunctionRef<absl::Status(const LogRecord& record)> take) const {
  absl::StatusOr<LogEnd> end = ReadShardLog(*files_, path_, from, shard_, take);
  if (!end.ok() || !end->newest.has_value()) return end;
  // Truncates (and syncs) even if nothing is cut, because the records may not be on the disk yet.
  absl::Status cut = files_->Truncate(LogPath(path_, *end->newest), end->newest_bytes);
  if (!cut.ok()) return cut;
  return end;
}

absl::Status ShardDirectory::RemovePartial() {
  const absl::StatusOr<std::vector<std::string>> names = files_->List(path_);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!absl::EndsWith(name, kPartial)) continue;
    if (absl::Status status = files_->Remove(absl::StrCat(path_, "/", name)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RecordWriter>> ShardDirectory::StartLog(const std::string& job, const LogEnd& end) {
  // Removes a file that was created but never written to.
  if (absl::Status status = files_->Remove(LogPath(path_, end.next)); !status.ok()) return status;
  internal::v1::LogHeader header;
  header.set_format(kLogFormat);
  header.set_job(job);
  header.set_shard(shard_);
  if (end.last.has_value()) *header.mutable_previous() = *end.last;
  absl::StatusOr<std::unique_ptr<RecordWriter>> log = CreateLog(header, end.next, std::nullopt);
  if (!log.ok()) return log;
  absl::MutexLock lock(&mutex_);
  header_ = std::move(header);
  logs_.push_back(end.next);
  return log;
}

absl::StatusOr<std::unique_ptr<RecordWriter>> ShardDirectory::ContinueLog(const RecordWriter& finished) {
  const uint64_t first = finished.next();
  internal::v1::LogHeader header;
  std::optional<uint64_t> spare;
  {
    absl::MutexLock lock(&mutex_);
    header = header_;
    *header.mutable_previous() = DescribePrevious(logs_.back(), finished.digest());
    if (!spares_.empty()) spare = spares_.back();
  }
  // Still listed as a spare, or Prune might remove it now.
  absl::StatusOr<std::unique_ptr<RecordWriter>> log = CreateLog(std::move(header), first, spare);
  absl::MutexLock lock(&mutex_);
  if (spare.has_value()) spares_.erase(std::find(spares_.begin(), spares_.end(), *spare));
  if (log.ok()) logs_.push_back(first);
  return log;
}

absl::StatusOr<std::unique_ptr<RecordWriter>> ShardDirectory::OpenLog(uint64_t first, std::optional<uint64_t> spare) {
  const std::string path = LogPath(path_, first);
  if (spare.has_value()) {
    const std::string old = LogPath(path_, *spare);
    absl::StatusOr<std::unique_ptr<RecordWriter>> log = RecordWriter::Reuse(files_, old, path, first);
    if (log.ok() || absl::IsDataLoss(log.status())) return log;
    // Not every file system supports reuse.
    files_->Remove(old).IgnoreError();
  }
  return RecordWriter::Create(files_, path, first);
}

absl::StatusOr<std::unique_ptr<RecordWriter>> ShardDirectory::CreateLog(internal::v1::LogHeader header, uint64_t first,
                                                                        std::optional<uint64_t> spare) {
  absl::StatusOr<std::unique_ptr<RecordWriter>> log = OpenLog(first, spare);
  if (!log.ok()) return log;
  internal::v1::ShardRecord record;
  *record.mutable_header() = std::move(header);
  // All earlier records are on the disk.
  absl::Status status = (*log)->Append({FrameMessage(record)}, first - 1);
  if (status.ok()) return log;
  return DropLog(LogPath(path_, first), status);
}

absl::Status ShardDirectory::DropLog(const std::string& path, const absl::Status& reason) {
  // A machine failure can undo a removal but not a rename, and RemovePartial removes files with this name.
  const std::string partial = absl::StrCat(path, kPartial);
  if (absl::Status renamed = files_->Rename(path, partial); !renamed.ok()) {
    return absl::DataLossError(
        absl::StrCat(reason.message(), "; ", path, " cannot be removed durably: ", renamed.message()));
  }
  files_->Remove(partial).IgnoreError();
  return reason;
}

absl::Status ShardDirectory::AddSnapshot(uint64_t position,
                                         absl::FunctionRef<absl::Status(const std::string& path)> write) {
  const std::string path = SnapshotPath(path_, position);
  const std::string partial = absl::StrCat(path, kPartial);
  absl::Status status = files_->Remove(partial);
  if (status.ok()) status = write(partial);
  if (status.ok()) status = files_->Rename(partial, path);
  if (!status.ok()) files_->Remove(partial).IgnoreError();
  return status;
}

uint64_t ShardDirectory::KeepSparesLocked(uint64_t position, size_t most) {
  const auto end = std::prev(std::upper_bound(logs_.begin(), logs_.end(), position + 1));
  for (auto first = logs_.begin(); first != end && spares_.size() < most; ++first) spares_.push_back(*first);
  logs_.erase(logs_.begin(), end);
  return logs_.front();
}

absl::Status ShardDirectory::Prune(uint64_t position, size_t most_spares) {
  const absl::StatusOr<std::vector<uint64_t>> snapshots = ListSnapshots(*files_, path_);
  if (!snapshots.ok()) return snapshots.status();
  const absl::StatusOr<std::vector<uint64_t>> logs = ListLogs(*files_, path_);
  if (!logs.ok()) return logs.status();
  std::vector<uint64_t> spares;
  uint64_t kept = 0;
  {
    absl::MutexLock lock(&mutex_);
    kept = KeepSparesLocked(position, most_spares);
    spares = spares_;
  }
  // Older logs first: if this is interrupted, a snapshot and all of the log after it remain.
  for (uint64_t first : *logs) {
    if (first >= kept || std::find(spares.begin(), spares.end(), first) != spares.end()) continue;
    if (absl::Status status = files_->Remove(LogPath(path_, first)); !status.ok()) return status;
  }
  for (uint64_t older : *snapshots) {
    if (older >= position) continue;
    if (absl::Status status = files_->Remove(SnapshotPath(path_, older)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ballast
