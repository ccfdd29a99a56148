// SPDX-License-Identifier: Apache-2.0
#include "common/storage/shard_log.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/program/this_process.h"
#include "common/status/error_reason.h"
#include "common/storage/framed_message.h"

namespace ballast {
namespace {

constexpr absl::string_view kLog = "log";
constexpr absl::string_view kSnapshot = "snapshot";

std::string PathOf(absl::string_view directory, absl::string_view kind, uint64_t position) {
  return absl::StrFormat("%s/%s-%020d", directory, kind, position);
}

absl::StatusOr<std::vector<uint64_t>> List(FileSystem& files, const std::string& directory, absl::string_view kind) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(directory);
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

template <typename... Parts>
absl::Status Damaged(const Parts&... parts) {
  return WithReason(v1::ERROR_REASON_STORAGE_FAILED, absl::DataLossError(absl::StrCat(parts...)));
}

template <typename... Parts>
absl::Status Unusable(const Parts&... parts) {
  return WithReason(v1::ERROR_REASON_STORAGE_FAILED, absl::FailedPreconditionError(absl::StrCat(parts...)));
}

std::string Describe(const internal::v1::LogHeader::Previous& file) {
  return absl::StrFormat("%d bytes with checksum %016x", file.bytes(), file.checksum());
}

// Reads the files of a log in order. Thread safety: none.
class Reading {
 public:
  Reading(std::string directory, uint64_t from, std::optional<uint32_t> shard,
          absl::FunctionRef<absl::Status(const LogRecord& record)> take)
      : directory_(std::move(directory)), from_(from), shard_(shard), take_(take) {
    end_.next = from;
  }

  absl::Status ReadFile(uint64_t first) {
    path_ = LogPath(directory_, first);
    first_ = first;
    absl::StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Open(path_, first);
    if (!reader.ok()) return reader.status();
    while (true) {
      const absl::StatusOr<std::optional<RecordReader::Record>> record = (*reader)->Next();
      if (!record.ok()) return WithReason(v1::ERROR_REASON_STORAGE_FAILED, record.status());
      if (!record->has_value()) break;
      if (absl::Status status = TakeRecord(**record); !status.ok()) return status;
    }
    read_to_ = (*reader)->next();
    end_.next = std::max(end_.next, read_to_);
    end_.newest = first;
    end_.newest_bytes = (*reader)->end();
    end_.unfinished = (*reader)->unfinished();
    end_.bytes += (*reader)->end();
    ++end_.files;
    if ((*reader)->end() > 0) end_.last = DescribePrevious(first, (*reader)->digest());
    return absl::OkStatus();
  }

  // Checks, after a file was read, that it ends where the next one begins.
  absl::Status CheckEnd(uint64_t next_first) const {
    if (end_.next == next_first) return absl::OkStatus();
    return Damaged(path_, ": has no complete record ", end_.next, " at offset ", end_.newest_bytes, ", but ",
                   LogPath(directory_, next_first), " follows");
  }

  // Checks, after all files were read, that the snapshot is not ahead of its log.
  absl::Status CheckSnapshot() const {
    if (from_ == 1 || read_to_ >= from_) return absl::OkStatus();
    const std::string snapshot = SnapshotPath(directory_, from_ - 1);
    if (path_.empty()) return Damaged(snapshot, ": the log after it is missing");
    return Damaged(path_, ": has no complete record ", read_to_, " at offset ", end_.newest_bytes, ", but ", snapshot,
                   " exists");
  }

  const LogEnd& end() const { return end_; }

 private:
  absl::Status TakeRecord(const RecordReader::Record& record) {
    internal::v1::ShardRecord change;
    const absl::StatusOr<absl::string_view> behind = ParseFramed(record.body, change);
    if (!behind.ok()) {
      return Damaged(path_, ": record ", record.position, " at offset ", record.offset, ": ",
                     behind.status().message());
    }
    if (record.position == first_) return CheckHeader(change);
    if (record.position < from_ || change.has_mark()) return absl::OkStatus();
    return take_({path_, record.position, record.offset, change, *behind});
  }

  absl::Status CheckHeader(const internal::v1::ShardRecord& record) const {
    if (!record.has_header()) return Damaged(path_, ": record ", first_, " at offset 0 is not a log header");
    const internal::v1::LogHeader& header = record.header();
    if (header.format() != kLogFormat) {
      return Unusable(path_, ": is a log of format ", header.format(), ", which only ",
                      header.format() < kLogFormat ? "an earlier" : "a later", " build of Ballast reads; this one, ",
                      kVersion, ", reads format ", kLogFormat);
    }
    if (shard_.has_value() && header.shard() != *shard_) {
      return Unusable(path_, ": is the log of shard ", header.shard(), ", want shard ", *shard_);
    }
    if (!end_.last.has_value()) return absl::OkStatus();
    const internal::v1::LogHeader::Previous &got = *end_.last, &want = header.previous();
    if (got.first() == want.first() && got.bytes() == want.bytes() && got.checksum() == want.checksum()) {
      return absl::OkStatus();
    }
    return Damaged(LogPath(directory_, got.first()), ": ends at offset ", got.bytes(), ": has ", Describe(got),
                   ", but ", path_, " follows ", LogPath(directory_, want.first()), " of ", Describe(want));
  }

  const std::string directory_;
  const uint64_t from_;
  const std::optional<uint32_t> shard_;
  const absl::FunctionRef<absl::Status(const LogRecord& record)> take_;
  LogEnd end_;
  // The current or last file, and the position of its next record.
  std::string path_;
  uint64_t first_ = 0;
  uint64_t read_to_ = 0;
};

}  // namespace

std::string LogPath(absl::string_view directory, uint64_t first) { return PathOf(directory, kLog, first); }
std::string SnapshotPath(absl::string_view directory, uint64_t position) {
  return PathOf(directory, kSnapshot, position);
}

absl::StatusOr<std::vector<uint64_t>> ListLogs(FileSystem& files, const std::string& directory) {
  return List(files, directory, kLog);
}
absl::StatusOr<std::vector<uint64_t>> ListSnapshots(FileSystem& files, const std::string& directory) {
  return List(files, directory, kSnapshot);
}

internal::v1::LogHeader::Previous DescribePrevious(uint64_t first, const LogDigest& digest) {
  internal::v1::LogHeader::Previous previous;
  previous.set_first(first);
  previous.set_bytes(digest.bytes);
  previous.set_checksum(digest.checksum);
  return previous;
}

absl::StatusOr<LogEnd> ReadShardLog(FileSystem& files, const std::string& directory, uint64_t from,
                                    std::optional<uint32_t> shard,
                                    absl::FunctionRef<absl::Status(const LogRecord& record)> take) {
  const absl::StatusOr<std::vector<uint64_t>> logs = ListLogs(files, directory);
  if (!logs.ok()) return logs.status();
  Reading reading(directory, from, shard, take);
  for (size_t i = 0; i < logs->size(); ++i) {
    const uint64_t first = (*logs)[i];
    const bool newest = i + 1 == logs->size();
    // Files that a snapshot replaces completely may remain: their removal was interrupted, or they wait to be reused.
    if (!newest && (*logs)[i + 1] <= from) continue;
    if (first > reading.end().next) {
      return Damaged(LogPath(directory, first), ": begins with record ", first, " at offset 0, want record ",
                     reading.end().next, ": the records between them are missing");
    }
    if (absl::Status status = reading.ReadFile(first); !status.ok()) return status;
    if (newest) break;
    if (absl::Status status = reading.CheckEnd((*logs)[i + 1]); !status.ok()) return status;
  }
  if (absl::Status status = reading.CheckSnapshot(); !status.ok()) return status;
  return reading.end();
}

}  // namespace ballast
